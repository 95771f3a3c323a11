"""What may be resumed and what not, on run folders made here: every refusal names its way out."""

import dataclasses
import itertools
import json
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths, Status, complete_checkpoints, write_json
from diagnostics.runs.find import process_start
from dtk.config import checkpoint_files
from dtk.config.batch import settle
from dtk.config.checkpoint_files import describe_files
from dtk.config.checks import check
from dtk.config.compose import compose
from dtk.config.resume import Resumed, resume
from dtk.errors import DtkError

DATA = "__0_0.distcp"


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A preempted run with the checkpoints of steps 4 and 6."""
    paths = RunPaths(tmp_path / "a run")
    composed = settle(compose(["model=gpt2_tiny", "train.steps=9"]), 2)
    paths.root.mkdir()
    paths.config.write_text(yaml.safe_dump(composed.plain))
    paths.overrides.write_text(yaml.safe_dump(composed.overrides))
    write_json(paths.status, Status(state="preempted"))
    write_json(paths.manifest, {"pid": os.getpid() + 1, "host": socket.gethostname(), "argv": []})
    for step in (4, 6):
        folder = paths.checkpoint(step)
        folder.mkdir(parents=True)
        (folder / DATA).write_bytes(os.urandom(5 << 20))
        (folder / ".metadata").write_bytes(b"about")
        write_json(folder / "checkpoint.json", {"step": step, "files": describe_files(folder)})
    return paths


def resumed(run: RunPaths, *overrides: str) -> Resumed:
    return resume(compose([f'resume="{run.root}"', *overrides]), None)


def refusal(run: RunPaths, *overrides: str) -> str:
    with pytest.raises(DtkError) as caught:
        resumed(run, *overrides)
    return str(caught.value)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def zero(path: Path) -> None:
    """A hole of a page, as a file system leaves it after a crash."""
    content = bytearray(path.read_bytes())
    content[3 << 20 : (3 << 20) + 4096] = bytes(4096)
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "damage", "why"),
    [
        (DATA, cut, f"{DATA} has 5,242,879 bytes instead of 5,242,880"),
        (DATA, zero, f"{DATA} differs from what was written"),
        (DATA, Path.unlink, f"{DATA} is missing"),
        (".metadata", empty, ".metadata has 0 bytes instead of 5"),
        ("checkpoint.json", empty, "checkpoint.json is not what dtk wrote"),
    ],
)
def test_a_damaged_checkpoint_is_named_with_the_way_out(
    name: str, damage: Callable[[Path], None], why: str, run: RunPaths
) -> None:
    newest = run.checkpoint(6)
    damage(newest / name)
    line = refusal(run)
    assert f"the checkpoint {newest} is damaged: {why}" in line
    assert "remove it to continue from step_00000004: rm -r " in line
    shutil.rmtree(Path(shlex.split(line[line.index("rm -r ") :])[2]))
    assert resumed(run).paths == run
    damage(run.checkpoint(4) / name)
    assert "to start again from step 1: it is the only one" in refusal(run)


def test_the_newest_checkpoint_stands_for_its_run(run: RunPaths) -> None:
    newest = resume(compose([f'resume="{run.checkpoint(6)}"']), None)
    assert newest.paths == run and newest.composed.config.resume == str(run.root)
    with pytest.raises(DtkError) as caught:
        resume(compose([f'resume="{run.checkpoint(4)}"']), None)
    later = run.checkpoints / "later"
    line = str(caught.value)
    assert "step_00000006 is newer" in line and f"mkdir '{later}' && mv '{run.checkpoint(6)}' '{later}'" in line
    later.mkdir()
    run.checkpoint(6).rename(later / "step_00000006")
    assert resume(compose([f'resume="{run.checkpoint(4)}"']), None).paths == run


def test_a_run_of_a_newer_dtk_is_refused(run: RunPaths) -> None:
    write_json(run.status, {"state": "paused", "schema_version": 99})
    assert refusal(run) == f"resume={run.root} was written by a newer dtk - upgrade dtk"


def test_folders_that_only_look_like_checkpoints_and_attempts_count_for_nothing(run: RunPaths) -> None:
    for name in ("step_x", "step_\u0663" * 8, "step_-0000009", "step_9", f"step_{'9' * 200}"):
        shutil.copytree(run.checkpoint(6), run.checkpoints / name)
    for name in ("attempt_3", "attempt_x", "attempt_\u00b2", f"attempt_{'9' * 200}"):
        (run.root / "logs" / name).mkdir(parents=True)
    shutil.copytree(run.checkpoint(6), run.checkpoint(123_456_789))
    assert [folder.name for folder in complete_checkpoints(run)] == [
        "step_00000004", "step_00000006", "step_123456789"
    ]  # fmt: skip
    shutil.rmtree(run.checkpoint(123_456_789))
    assert resumed(run).attempt == 4


def test_only_the_checkpoint_that_is_taken_is_read(run: RunPaths) -> None:
    empty(run.checkpoint(4) / DATA)
    assert resumed(run).attempt == 1


def test_of_a_large_checkpoint_a_sample_is_read(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "BUDGET_BYTES", 2 << 20)
    folder = run.checkpoint(6)
    files = describe_files(folder)
    assert 2 << 20 < files[DATA]["stride_bytes"] < 3 << 20
    write_json(folder / "checkpoint.json", {"files": files})
    resumed(run)
    content = (folder / DATA).read_bytes()
    (folder / DATA).write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    assert "differs from what was written" in refusal(run)


def test_the_kind_of_optimizer_stays(run: RunPaths) -> None:
    assert "optimizer=sgd cannot replace adamw in a resumed run" in refusal(run, "optimizer=sgd")
    again = resumed(run, "optimizer=adamw", "optimizer.lr=0.5").composed.config
    assert (again.optimizer.name, again.optimizer.lr) == ("adamw", 0.5)


def test_what_only_repeats_the_run_is_no_change(run: RunPaths) -> None:
    assert resumed(run, "model=gpt2_tiny", "seed=1234", "train.steps=12").composed.config.train.steps == 12
    assert refusal(run, "model=gpt2_tiny", "model.layers=3").startswith("model.layers cannot change")


def test_a_choice_is_composed_with_the_keys_that_it_requires(run: RunPaths) -> None:
    own = ("model=custom", "model._target_=torch.nn.Linear", "allow_targets=[torch.*]")
    assert refusal(run, *own).startswith("model._target_ cannot change")


def test_only_what_a_resumed_run_may_change_is_advised(run: RunPaths) -> None:
    composed = resumed(run).composed

    def checked(ranks: int, micro: int) -> None:
        train = dataclasses.replace(composed.config.train, micro_batch_size=micro)
        changed = dataclasses.replace(composed, config=dataclasses.replace(composed.config, train=train))
        check(settle(changed, ranks).config, ranks, "cpu")

    for ranks, micro in itertools.product((1, 2, 3, 4, 5, 16), (0, 1, 3, 4, 8)):
        if 8 % (max(1, micro) * ranks) == 0:
            checked(ranks, micro)
            continue
        with pytest.raises(DtkError) as caught:
            checked(ranks, micro)
        fix = caught.value.fix
        assert "global_batch_size" not in fix
        fewer = re.search(r"launcher\.nproc=(\d+)", fix)
        sizes = re.search(r"train\.micro_batch_size=([\d, or]+)", fix)
        assert fewer or sizes
        for size in re.findall(r"\d+", sizes[1]) if sizes else [str(micro)]:
            checked(int(fewer[1]) if fewer else ranks, int(size))


def test_a_run_that_is_going_is_told_by_its_process_and_when_that_began(run: RunPaths) -> None:
    parent = os.getppid()
    write_json(run.status, Status(state="running"))
    about = json.loads(run.manifest.read_text()) | {"pid": parent, "pid_start": process_start(parent)}
    write_json(run.manifest, about)
    assert f"still running (process {parent})" in refusal(run)
    write_json(run.manifest, about | {"pid_start": about["pid_start"] - 1})  # The id was given out again.
    assert resumed(run).attempt == 1
