"""A run folder of somebody else: no record of it makes a command wait, crash, or obey it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from dtk.commands.main import main
from dtk.config.compose import compose
from dtk.config.resume import rerun, resume
from dtk.errors import DtkError
from dtk.launch.console import Console, banner
from dtk.ui.pages import run_page, runs_page
from tests.cli.command import ROOT, environment

PLACES = [
    *(attribute.place.format(0, 0) for attribute in vars(RunPaths).values() if hasattr(attribute, "place")),
    *(f"logs/attempt_0/rank_00000/{name}" for name in ("stdout.log", "stderr.log", "elastic_error.json")),
    *("checkpoints/step_00000002/checkpoint.json", "checkpoints/step_00000002/.metadata", "nccl.host.1.log"),
    *("report/report.json", "report/report.html", "tensorboard", "wandb"),
]
"""Everything that the contract names, and what else lies in a run folder."""
RECORDS = sorted({place for place in PLACES if not any(other.startswith(f"{place}/") for other in PLACES)})
FOLDERS = sorted({place.split("/")[0] for place in PLACES if "/" in place})
FIRST = ("status.json", "manifest.json", "config.yaml", "overrides.yaml")
"""What a command reads before it looks at anything else."""
OUTSIDE = "from_outside"
ESCAPES = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202egnp\r\n"


def make(folder: Path, **sections: Any) -> RunPaths:
    """A run folder with every record, as dtk writes it but for what is given."""
    paths = RunPaths(folder)
    paths.root.mkdir(parents=True, mode=0o755)
    plain = compose(["model=gpt2_tiny", f"runs_folder={folder.parent}"], None, traced=True).plain
    for name, values in sections.items():
        plain[name] = {**plain[name], **values}
    for name in RECORDS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    paths.config.write_text(yaml.safe_dump(plain))
    paths.overrides.write_text("[]")
    write_json(paths.status, Status(state="preempted", step=1, started="2026-01-02", updated="2026-01-02"))
    write_json(paths.manifest, {"schema_version": 1, "run_id": folder.name, "argv": [], "config_sha256": "x"})
    return paths


class Late(BaseException):
    """No exception that the code under test could take for a file that cannot be read."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail where something waits."""

    def late(number: int, frame: object) -> None:
        raise Late(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def every_command(root: Path) -> None:
    other = root.parent.parent / "other" / "run"
    for words in (
        ["ls", str(root.parent)],
        ["show", str(root)],
        ["show", str(root), "--why", "train.steps"],
        ["diagnose", str(root)],
        ["compare", str(root), str(other if other.exists() else root)],
        ["trace", str(root), "--out", str(root.parent / "trace.json")],
        ["sync", str(root)],
        ["rm", str(root), "--dry-run"],
    ):
        assert main(words) in (0, 1, 2, 3), words
    for page in (lambda: runs_page(root.parent, {}), lambda: run_page(root.parent, root.name)):
        with suppress(DtkError):
            print(page())
    with suppress(DtkError):
        rerun(root, [], None)
    with suppress(DtkError):
        resume(compose([f"resume={root}", f"runs_folder={root.parent}"], None), None)


def replace(path: Path, kind: str, outside: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("link", "loop"):
        path.symlink_to(outside if kind == "link" else path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("[" * 100_000)


@pytest.mark.parametrize("spared", [FIRST[:0], FIRST[:2], FIRST])
@pytest.mark.parametrize("kind", ["pipe", "link", "loop", "device", "folder", "nesting"])
def test_no_record_makes_a_command_wait_crash_or_tell_what_lies_elsewhere(
    tmp_path: Path, kind: str, spared: tuple[str, ...], capsys: Any
) -> None:
    outside = tmp_path / "outside.json"
    values = {"schema_version": 1, "step": 1, "loss": 1.0, "kind": "event", "rank": 0, "attempt": 0, "time_s": 1.0}
    texts = dict.fromkeys(("state", "run_id", "reason", "name", "message", "type"), OUTSIDE)
    outside.write_text(json.dumps({**values, **texts, OUTSIDE: 2.5}) + f"\nRuntimeError: {OUTSIDE}\n")
    data = outside.read_bytes()
    root = make(tmp_path / "runs" / "run").root
    shutil.copytree(root, tmp_path / "other" / "run")
    for record in RECORDS:
        if record not in spared:
            replace(root / record, kind, outside)
    with at_most(60):
        every_command(root)
    shown = "".join(capsys.readouterr())
    written = [path.read_text(errors="replace") for path in (root / "report").rglob("*") if path.is_file()]
    assert outside.read_bytes() == data and OUTSIDE not in shown.replace(str(outside), "")
    assert kind == "link" or not any(OUTSIDE in text for text in written)


@pytest.mark.parametrize("kind", ["pipe", "link", "loop", "device", "nesting"])
def test_no_folder_of_records_does_either(tmp_path: Path, kind: str, capsys: Any) -> None:
    outside = tmp_path / "outside"
    root = make(tmp_path / "runs" / "run").root
    shutil.copytree(root, tmp_path / "other" / "run")
    for folder in FOLDERS:
        if (root / folder).is_dir():
            shutil.copytree(root / folder, outside, dirs_exist_ok=True)
        replace(root / folder, kind, outside)
    for path in [path for path in outside.rglob("*") if path.is_file()]:
        path.write_text(f"RuntimeError: {OUTSIDE}\n")
    before = sorted(outside.rglob("*"))
    with at_most(60):
        every_command(root)
    assert OUTSIDE not in "".join(capsys.readouterr()) and sorted(outside.rglob("*")) == before


def test_a_configuration_of_a_hundred_thousand_brackets_is_one_line(tmp_path: Path) -> None:
    """In a process of its own: the parser of the YAML library ends the whole process."""
    root = make(tmp_path / "run").root
    (root / "config.yaml").write_text("[" * 200_000 + "]" * 200_000)
    for words in (["diagnose", str(root)], ["rerun", str(root), "--cfg"]):
        done = subprocess.run(
            [sys.executable, "-m", "dtk", *words],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr, done


def test_a_link_leads_no_record_from_outside_into_the_report(tmp_path: Path, capsys: Any) -> None:
    outside = make(tmp_path / "outside")
    outside.config.write_text("secret_words: from_outside\n")
    line = {"kind": "event", "name": "from_outside", "attempt": 0, "rank": 0, "time_s": 1.0}
    (outside.root / "events/rank_00000.jsonl").write_text(json.dumps(line) + "\n")
    (outside.root / "logs/attempt_0/rank_00000/stderr.log").write_text("RuntimeError: from_outside\n")
    run = make(tmp_path / "inside" / "run").root
    for name in ("events", "logs", "heartbeat"):
        for path in sorted((run / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (run / name).rmdir()
        (run / name).symlink_to(outside.root / name)
    for name in ("config.yaml", "summary.json"):
        (run / name).unlink()
        (run / name).symlink_to(outside.root / name)
    main(["diagnose", str(run), "--verbose"])
    written = "".join(path.read_text() for path in (run / "report").iterdir())
    assert "from_outside" not in written + capsys.readouterr().out


def test_no_escape_sequence_of_a_folder_reaches_the_terminal(tmp_path: Path, capsys: Any) -> None:
    root = make(tmp_path / "run", model={"name": f"gpt{ESCAPES}"}, nccl={"variables": {"NCCL_DEBUG": ESCAPES}}).root
    typed = [f"train.steps=3{ESCAPES}", f"launcher.name={ESCAPES}"]
    (root / "overrides.yaml").write_text(yaml.safe_dump(typed))
    status = {
        "state": "failed",
        "reason": ESCAPES,
        "failure": {"rank": 0, "reason": ESCAPES, "region": ESCAPES, "log": ESCAPES},
    }
    (root / "status.json").write_text(json.dumps({**status, "schema_version": 1, "attempt": 0}))
    (root / "manifest.json").write_text(
        json.dumps(
            {"schema_version": 1, "run_id": ESCAPES, "argv": [ESCAPES], "git": {"commit": ESCAPES, "dirty": False}}
        )
    )
    every_command(root)
    for words in (
        ["show", str(root), "--why", "train.steps"],
        ["rerun", str(root), "--cfg"],
        ["rm", str(root), "--yes"],
    ):
        main(words)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert all(character.isprintable() for line in text.split("\n") for character in line), text


def test_the_banner_of_a_run_shows_names_and_obeys_none(tmp_path: Path, capsys: Any) -> None:
    from dtk.config.placement import Placement
    from dtk.config.strict import from_plain

    paths = make(
        tmp_path / f"run{ESCAPES.strip()}", model={"name": ESCAPES}, nccl={"variables": {"NCCL_DEBUG": ESCAPES}}
    )
    config = from_plain(yaml.safe_load(paths.config.read_text()))
    console = Console()
    banner(console, config, paths, Placement(1, 1, "cpu", "gloo", 1, 0, ()), 0)
    console.line(f"[rank 0] {ESCAPES}")
    console.progress(f"step 1/2 {ESCAPES}")
    text = capsys.readouterr().out
    assert all(character.isprintable() for line in text.split("\n") for character in line), text
