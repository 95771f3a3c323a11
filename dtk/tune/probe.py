"""One probe: a short run of dtk as a process of its own, and what its run folder says of it afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnostics.contract.artifacts import Failure
from diagnostics.runs.find import read_details
from dtk.launch.short_run import QUIET, run_short, speed_and_peak

LOG_EVERY = 2
"""Windows of two steps: the host waits for the device half as often, and three windows remain after the first two."""


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
    failure: Failure | None = None

    @property
    def fits(self) -> bool:
        """Whether it came to its end."""
        return self.state == "finished"

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ended it; the kernel sends SIGKILL when the host has none left."""
        ended = self.failure is not None and (self.failure.kind == "oom" or self.failure.signal == "SIGKILL")
        return self.state == "oom" or (self.state == "failed" and ended)


def terms(steps: int, schedule: str) -> list[str]:
    """Return the overrides that make a run short and free of side effects.

    Args:
        steps: optimizer steps.
        schedule: name of the schedule; the phases of wsd must not overlap, and in a warm-up there are none.
    """
    short = [f"schedule.warmup_steps={steps}"] if schedule == "wsd" else []
    return [f"train.steps={steps}", f"train.log_every={LOG_EVERY}", *QUIET, *short]


def probe(overrides: Sequence[str], config_dir: Path | None, home: Path) -> Probe:
    """Run once to its end.

    Args:
        overrides: all of them, `terms` included.
        config_dir: the user's own YAML files.
        home: gets the run folder; exists.

    Raises:
        DtkError: the run could not start, which it says in one line.
    """
    folder = [] if config_dir is None else ["--config-dir", str(config_dir)]
    return _read(run_short([*folder, *overrides], home))


def _read(run: Path) -> Probe:
    details = read_details(run)
    status = details.status
    failure = status.failure if status else None
    reason = "" if status is None else failure.reason if failure else status.reason
    return Probe(run, details.run.state, reason, *speed_and_peak(details), failure)
