"""Wrong input as a user types it: exit code 2, exactly one line that begins with `dtk: `, no run folder."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml

from tests.cli.command import FAULTY, ROOT, TINY, environment, only_run, run, start, status
from tests.patience import stretched

CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: it is no error here")

COMPOSING = {
    "strategy=fsd": "strategy=fsdp",
    "model=gpt3": "model=gpt2",
    "trian.steps=3": "did you mean train",
    "+train.stpes=3": "did you mean train.steps",
    "++train.stpes=3": "did you mean train.steps",
    "strategy.bucket_cap_mb=1": "belongs to strategy=ddp",
    "train.steps=abc": "not a whole number",
    "train.steps=1.5": "not a whole number",
    "optimizer.lr=nan": "not a number",
    "steps": "KEY=VALUE",
    "": "KEY=VALUE",
    "train.steps=\u2603": "KEY=VALUE",
    "--nope": "unrecognized arguments: --nope",
    "--config-dir /nope": "no such folder",
    "data=text": "data.path is required",
    "train.steps=${nope}": "nope",
    "resume=": "resume is empty",
    "resume=runs/nope": "no such run folder",
    "model=gpt2,gpt2_tiny": "add -m",
    "-m strategy=ddp,single,fsd": "did you mean strategy=fsdp",
    "-m train.steps=1,x": "train.steps=x is text",
}
CHECKED = {
    "train.steps=0": "1 or more",
    "optimizer.lr=-1": "0 or more",
    "seed=99999999999999999999999999": "out of range",
    "launcher.nproc=0": "1 or more",
    "model.name=../../x": "run folder's name",
    "'model.name=\"two words\"'": "run folder's name",
    "data.sequence_length=99999": "data.sequence_length=1024",
    "seed=-1": "seed=-1 is out of range: it must be 0 to 9223372036854775807",
    "strategy=hsdp launcher.nproc=3": "valid dp_replicate x dp_shard: 3 x 1, 1 x 3",
    "strategy=single launcher.nproc=3": "strategy=single runs in one process",
    "data.tokenizer=bert": 'unknown tokenizer "bert"',
    "model=custom model._target_=os.system": "_target_=os.system is not allowed",
    "model=custom model._target_=os.system 'allow_targets=[os.*]'": "_target_=os.system is not a class",
    "model=custom model._target_=nope.Nope 'allow_targets=[nope.*]'": "No module named 'nope'",
    "model=custom model._target_=tests.cli.faulty.Fualty 'allow_targets=[tests.*]'": "did you mean Faulty",
    "train.global_batch_size=10 train.micro_batch_size=3": "train.global_batch_size=6 or 12",
    "data=text data.path=/nonexistent": "no such file or folder: /nonexistent",
    "data=tokens data.path=/tmp": "no such token file: /tmp",
    "data=hf data.path=/nonexistent/x": "no such dataset",
    "data.tokenizer=/tmp": "unknown tokenizer",
    "data.max_bytes=10": "needs at least 258",
    "model=gpt2 model.pretrained=/nonexistent": "no readable config.json",
    "runs_folder=/proc/runs": "runs_folder=/path",
    "launcher.master_port=99999": "0 to 65535",
}


def one_line(process: "subprocess.CompletedProcess[str]") -> str:
    """The line on stderr, after checking that there is nothing else."""
    assert "Traceback" not in process.stdout + process.stderr
    assert process.returncode == 2, process.stdout + process.stderr
    lines = process.stderr.splitlines()
    assert len(lines) == 1, process.stderr
    assert lines[0].startswith("dtk: ")
    return lines[0]


def refused(folder: Path, *overrides: str, **more: str) -> str:
    """Run what must be refused before any run folder is made; returns the line."""
    runs = folder / "runs"
    line = one_line(run(runs, *overrides, timeout_s=60, **more))
    assert not runs.exists() or not list(runs.iterdir())
    return line


def split(typed: str) -> list[str]:
    import shlex

    return shlex.split(typed) if typed else [""]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("typed", COMPOSING)
def test_an_error_of_composing(typed: str, tmp_path: Path) -> None:
    assert COMPOSING[typed] in refused(tmp_path, *split(typed))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("typed", CHECKED)
def test_an_error_of_checking(typed: str, tmp_path: Path) -> None:
    assert CHECKED[typed] in refused(tmp_path, *split(typed))


@pytest.mark.timeout(60)
@CPU_ONLY
@pytest.mark.parametrize("typed", ["launcher.backend=nccl", "launcher.device=cuda", "strategy=dp"])
def test_a_gpu_asked_for_where_there_is_none(typed: str, tmp_path: Path) -> None:
    assert typed in refused(tmp_path, typed)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# @package _global_\ntrain:\n  stpes: 3\n", 'unknown key "train.stpes"'),
        ("# @package _global_\ntrain: [\n", "not valid YAML"),
        ("# @package _global_\ntrain:\n  steps: many\n", "train.steps=many is text"),
    ],
)
def test_a_typo_in_a_file_of_the_users(content: str, expected: str, tmp_path: Path) -> None:
    own = tmp_path / "conf with spaces" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(content)
    assert expected in refused(tmp_path, "--config-dir", str(own.parent), "experiment=mine")


@pytest.mark.timeout(60)
def test_an_empty_corpus(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("picture.bin", "sound.bin"):
        (corpus / name).write_bytes(b"\x00\xff" * 500)
    (corpus / "dangling.txt").symlink_to(tmp_path / "nothing")
    assert "holds no text" in refused(tmp_path, "data=text", f"data.path={corpus}")


@pytest.mark.timeout(60)
def test_a_damaged_token_file(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.bin"
    tokens.write_bytes(b"\x01" * 4097)
    assert "not a whole number of uint16 ids" in refused(tmp_path, "data=tokens", f"data.path={tokens}")
    tokens.write_bytes(b"\xff" * 4096)
    assert "holds token id 65535" in refused(tmp_path, "data=tokens", f"data.path={tokens}")


@pytest.mark.timeout(60)
@pytest.mark.skipif(find_spec("datasets") is not None, reason="the package datasets is installed")
def test_data_hf_without_its_package(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    assert "dtk-train[hf]" in refused(
        tmp_path, "data=hf", f"data.path={tmp_path}/a.jsonl", XDG_CACHE_HOME=str(tmp_path)
    )


@pytest.mark.timeout(60)
@pytest.mark.skipif(find_spec("tensorboard") is not None, reason="the package tensorboard is installed")
def test_a_tracker_that_is_not_installed(tmp_path: Path) -> None:
    assert "dtk-train[tensorboard]" in refused(tmp_path, "tracker=tensorboard")


@pytest.mark.timeout(60)
@pytest.mark.skipif(find_spec("tiktoken") is None, reason="the package tiktoken is not installed")
def test_the_gpt2_tokenizer_without_cache_and_network(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    line = refused(
        tmp_path,
        "data.tokenizer=gpt2",
        TIKTOKEN_CACHE_DIR=str(tmp_path / "cache"),
        HTTPS_PROXY=nowhere,
        https_proxy=nowhere,
    )
    assert "data.tokenizer=byte" in line


@pytest.mark.timeout(60)
def test_a_wrong_folder_of_pretrained_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    line = refused(tmp_path, "model=gpt2", f"model.pretrained={tmp_path}")
    assert "does not contain a GPT-2 model" in line


@pytest.mark.timeout(60)
def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"launcher.master_port={port}" in refused(tmp_path, f"launcher.master_port={port}")


@pytest.mark.timeout(60)
def test_a_file_in_place_of_the_runs_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("mine")
    line = one_line(run(tmp_path / "runs", *TINY))
    assert "cannot write to the runs folder" in line
    assert (tmp_path / "runs").read_text() == "mine"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page; only root may mount it."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a tiny file system needs root")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=4096", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tiny file system: {done.stderr.strip()}")
    (folder / "filler").write_bytes(b"x" * 4096)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.timeout(60)
def test_a_full_runs_folder(full_disk: Path) -> None:
    line = one_line(run(full_disk, *TINY))
    assert "the disk is full" in line
    assert "runs_folder=/path" in line
    assert [path.name for path in full_disk.iterdir()] == ["filler"]


def quota() -> None:
    """No file may be larger than 256 bytes; Python ignores the signal, so the write itself fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))


@pytest.mark.timeout(60)
def test_files_that_cannot_grow(tmp_path: Path) -> None:
    """As on a full disk; everybody can run this one, while a mount needs root."""
    runs = tmp_path / "runs"
    process = subprocess.run(
        [sys.executable, "-m", "dtk.run", f"runs_folder={runs}", "data=synthetic", "train.steps=1", "model=gpt2_tiny"],
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        preexec_fn=quota,
        capture_output=True,
        text=True,
        timeout=stretched(60),
        check=False,
    )
    assert f"cannot write to the runs folder {runs}" in one_line(process)
    assert not list(runs.iterdir())


@pytest.mark.timeout(90)
def test_what_a_rank_finds_closes_the_run(tmp_path: Path) -> None:
    """Only importing a user's package tells that it cannot be imported, and the ranks do that."""
    (tmp_path / "theirs.py").write_text("import nope\n\n\nclass Model: ...\n")
    target = ["model._target_=theirs.Model", "allow_targets=[theirs.*]"]
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    process = run(tmp_path / "runs", *FAULTY, *target, "launcher.nproc=1", PYTHONPATH=path)
    expected = "No module named 'nope'"
    assert expected in one_line(process)
    record = status(only_run(tmp_path / "runs"))
    assert (record["state"], record["exit_code"]) == ("failed", 2)
    assert expected in record["reason"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one rank with a checkpoint, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("finished")
    process = run(folder, *TINY, "train.steps=2", "strategy=single", "checkpoint=default")
    assert process.returncode == 0, process.stdout + process.stderr
    return only_run(folder)


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy of = a run"))


def resumed(folder: Path, *overrides: str) -> str:
    return refused(folder.parent, f'resume="{folder}"', "train.steps=3", *overrides)


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("model=gpt2", "model cannot change in a resumed run"),
        ("model.layers=3", "model.layers cannot change in a resumed run"),
        ("data=synthetic", "data cannot change in a resumed run"),
    ],
)
def test_resume_with_something_else(changed: str, expected: str, copy: Path) -> None:
    assert expected in resumed(copy, changed)


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"\x00\xff\xfe"),
        ("config.yaml", b"{model: ["),
        ("config.yaml", b"{}"),
        ("config.yaml", b"model: gpt2\n"),
        ("overrides.yaml", b"3\n"),
        ("overrides.yaml", b"[3, {}]\n"),
        ("overrides.yaml", None),
    ],
)
def test_resume_of_a_damaged_run(name: str, content: bytes | None, copy: Path) -> None:
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content)
    resumed(copy)


@pytest.mark.timeout(60)
def test_a_full_disk_does_not_cost_the_run_that_is_resumed(copy: Path) -> None:
    before = {name: (copy / name).read_bytes() for name in ("config.yaml", "overrides.yaml", "status.json")}
    process = subprocess.run(
        [sys.executable, "-m", "dtk.run", f'resume="{copy}"', "train.steps=3"],
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        preexec_fn=quota,
        capture_output=True,
        text=True,
        timeout=stretched(60),
        check=False,
    )
    assert "cannot write to the runs folder" in one_line(process)
    assert {name: (copy / name).read_bytes() for name in before} == before


@pytest.mark.timeout(90)
def test_resume_of_what_is_no_run(tmp_path: Path) -> None:
    assert "is not a run folder" in resumed(tmp_path)


@pytest.mark.timeout(90)
def test_resume_from_the_checkpoint_of_another_model(copy: Path) -> None:
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["model"]["layers"] += 1
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    process = run(copy.parent / "runs", f'resume="{copy}"', "train.steps=3")
    assert "is of another model" in one_line(process)
    record = status(copy)
    assert (record["state"], record["exit_code"]) == ("failed", 2)


@pytest.mark.timeout(90)
def test_resume_of_a_run_that_is_still_running(tmp_path: Path) -> None:
    process = start(tmp_path / "first", *TINY, "train.steps=100000", "launcher.nproc=1", "record=off")
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("step "):
            assert process.poll() is None
        line = refused(tmp_path, f"resume={only_run(tmp_path / 'first')}")
        assert f"still running (process {process.pid})" in line
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.timeout(90)
def test_an_odd_runs_folder_is_no_error(tmp_path: Path) -> None:
    """Spaces, `=`, a comma, letters beyond ASCII, and a link to it."""
    uneven = tmp_path / "a = b, \u00e9\u2603"
    uneven.mkdir()
    (tmp_path / "link").symlink_to(uneven)
    process = run(tmp_path / "unused", *TINY, "train.steps=1", f'runs_folder="{tmp_path}/link/new"', "launcher.nproc=1")
    assert process.returncode == 0, process.stdout + process.stderr
    folder = only_run(uneven / "new")
    assert status(folder)["state"] == "finished"
    again = run(tmp_path / "unused", f'resume="{folder}"', "train.steps=2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert status(folder)["step"] == 2


@pytest.mark.timeout(120)
def test_what_an_own_model_cannot_do_is_refused_before_the_launch(tmp_path: Path) -> None:
    own = ["model=custom", "model._target_=torch.nn.Linear", "model.arguments={in_features: 4, out_features: 4}"]
    for setting in ("train.compile=true", "train.activation_checkpoint_every=1", "strategy.blocks_per_unit=2"):
        line = refused(tmp_path, *own, setting)
        assert f"{setting} works on the blocks of a model, and model=custom has none" in line
        assert "model.wrap=[MyBlock]" in line
    assert "model.wrap=Blok matches no module" in refused(tmp_path, *own, "model.wrap=[Blok]")
