"""Runs a fault as a user types it, once per test session, whatever the number of test workers."""

import fcntl
import io
import json
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtk.commands.main import main
from tests.cli.command import ROOT, environment
from tests.warm_python import run_module

LIMIT_S = 200
"""A run that takes longer than its timeout_s and this is a hang that nobody ended."""


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One run and what came of it."""

    folder: str
    exit_code: int
    out: str
    error: str

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)

    def status(self) -> dict[str, Any]:
        return json.loads((self.path / "status.json").read_text())


def run_fault(base: Path, fault: str, *overrides: str) -> FaultRun:
    """Run `fault` below `base`, or take what an earlier call there found."""
    place = base / fault
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = place / "result.json"
        if not result.exists():
            result.write_text(json.dumps(asdict(_run(place, fault, overrides))))
        return FaultRun(**json.loads(result.read_text()))


def _run(place: Path, fault: str, overrides: tuple[str, ...]) -> FaultRun:
    runs = place / "runs"
    command = ["dtk.run", f"fault={fault}", f"runs_folder={runs}", "data.max_bytes=300000", *overrides]
    process = run_module(command, environment(OMP_NUM_THREADS="1"), ROOT, LIMIT_S)
    assert runs.is_dir(), process.stdout + process.stderr
    (folder,) = [path for path in runs.iterdir() if path.is_dir()]
    return FaultRun(str(folder), process.returncode, process.stdout, process.stderr)


def diagnose(run: FaultRun) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `dtk diagnose --json`."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(["diagnose", run.folder, "--json"])
    assert code in (0, 1)
    return code, json.loads(out.getvalue())
