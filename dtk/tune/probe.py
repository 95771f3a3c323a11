"""One probe: a short run of dtk as a process of its own, and what its run folder says of it afterwards."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.contract.invocation import override
from diagnostics.evidence.endings import kind_of_reason, parse_reason
from diagnostics.runs.find import read_details
from dtk.errors import DtkError
from dtk.launch.processes import importable

STEPS = 10
LOG_EVERY = 2
"""Windows of two steps: the host waits for the device half as often, and three windows remain after the first two."""
_END_S = (2.0, 15.0, 5.0)
"""Waited for a run to end by itself, as Ctrl-C has reached it too, then after each of two requests."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How one short run ended."""

    run: Path
    state: str
    """Of status.json."""
    reason: str
    tokens_per_s: float | None
    peak_memory_bytes: float | None
    """Of the rank with the most."""

    @property
    def fits(self) -> bool:
        """Whether it came to its end."""
        return self.state == "finished"

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ended it; the kernel sends SIGKILL when the host has none left."""
        killed = parse_reason(self.reason).signal == "SIGKILL"
        return self.state == "oom" or (self.state == "failed" and (killed or kind_of_reason(self.reason) == "oom"))


def terms(steps: int, schedule: str) -> list[str]:
    """Return the overrides that make a run short and free of side effects.

    Args:
        steps: optimizer steps.
        schedule: name of the schedule; the phases of wsd must not overlap, and in a warm-up there are none.
    """
    short = [f"schedule.warmup_steps={steps}"] if schedule == "wsd" else []
    return [
        f"train.steps={steps}",
        f"train.log_every={LOG_EVERY}",
        "train.evaluate_every=-1",
        "checkpoint=off",
        "tracker=none",
        *short,
    ]


def probe(overrides: Sequence[str], config_dir: Path | None, home: Path) -> Probe:
    """Run once to its end.

    Args:
        overrides: all of them, `terms` included.
        config_dir: the user's own YAML files.
        home: gets the run folder; exists.

    Raises:
        DtkError: the run could not start, which it says in one line.
    """
    before = {entry.name for entry in home.iterdir()}
    typed = [*overrides, override("runs_folder", home.absolute())]
    folder = [] if config_dir is None else ["--config-dir", str(config_dir)]
    code, said = _run([sys.executable, "-m", "dtk.run", *folder, *typed])
    made = sorted(entry for entry in home.iterdir() if entry.name not in before and entry.is_dir())
    if not made or code == 2:
        line = (said.strip().splitlines() or ["it left no run folder"])[-1].removeprefix("dtk: ")
        raise DtkError("a probe could not run", line, f"tried: dtk run {shlex.join(overrides)}")
    return _read(made[-1])


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and standard error; a run is never left behind."""
    process = subprocess.Popen(
        command,
        env=importable(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        _, said = process.communicate()
    except BaseException:
        _end(process)
        raise
    return process.returncode, said


def _end(process: "subprocess.Popen[str]") -> None:
    """Wait, ask, insist, kill: a run that is asked twice ends its ranks at once."""
    for wait_s in _END_S:
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return
        process.terminate()
    process.kill()
    process.wait()


def _read(run: Path) -> Probe:
    details = read_details(run)
    status = details.status
    figures = {**details.last_metrics, **details.summary}
    peaks = figures.get("peak_memory_bytes_per_rank")
    reason = "" if status is None else status.failure.reason if status.failure else status.reason
    return Probe(
        run=run,
        state=details.run.state,
        reason=reason,
        tokens_per_s=_number(figures.get("tokens_per_s")),
        peak_memory_bytes=max(peaks)
        if isinstance(peaks, list) and peaks
        else _number(figures.get("peak_memory_bytes")),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
