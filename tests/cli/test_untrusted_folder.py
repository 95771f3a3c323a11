"""A run folder of somebody else: no record of it makes a command wait, crash, or obey it."""

import json
import os
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
from dtk.launch.banner import banner
from dtk.launch.console import Console
from tests.cli.command import ROOT, environment

RECORDS = [
    "status.json",
    "manifest.json",
    "config.yaml",
    "overrides.yaml",
    "origins.json",
    "summary.json",
    "plan.json",
    "metrics.jsonl",
    "heartbeat/rank_00000.json",
    "events/rank_00000.jsonl",
    "logs/attempt_0/rank_00000/error.json",
    "logs/attempt_0/watch.json",
    "logs/attempt_0/rank_00000/stderr.log",
    "checkpoints/step_00000002/checkpoint.json",
    "parity.json",
]
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


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail where something waits."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def every_command(root: Path) -> None:
    for words in (
        ["ls", str(root.parent)],
        ["show", str(root)],
        ["diagnose", str(root)],
        ["compare", str(root), str(root)],
    ):
        assert main(words) in (0, 1, 2, 3), words
    with suppress(DtkError):
        rerun(root, [], None)
    with suppress(DtkError):
        resume(compose([f"resume={root}", f"runs_folder={root.parent}"], None), None)


def replace(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("[" * 100_000)


@pytest.mark.parametrize("record", RECORDS)
def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path: Path, record: str) -> None:
    root = make(tmp_path / "run").root
    replace(root / record, "pipe")
    with at_most(60):
        every_command(root)


@pytest.mark.parametrize("spared", [RECORDS[:0], RECORDS[:2], RECORDS[:4]])
@pytest.mark.parametrize("kind", ["device", "folder", "nesting"])
def test_no_record_makes_a_command_wait_or_crash(tmp_path: Path, kind: str, spared: list[str]) -> None:
    root = make(tmp_path / "run").root
    for record in RECORDS:
        if record not in spared:
            replace(root / record, kind)
    with at_most(60):
        every_command(root)


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
    banner(console, config, paths, Placement(1, "cpu", "gloo", 1, 0, ()), 0, 1)
    console.line(f"[rank 0] {ESCAPES}")
    console.progress(f"step 1/2 {ESCAPES}")
    text = capsys.readouterr().out
    assert all(character.isprintable() for line in text.split("\n") for character in line), text
