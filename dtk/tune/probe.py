"""One probe: a short run of dtk in its own process, and the figures in its run folder."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics.contract.artifacts import Failure
from diagnostics.runs.find import read_details
from dtk.launch.short_run import QUIET, run_short, speed_and_peak
from dtk.tune.candidates import Candidate

Progress = Callable[[str], None]
LOG_EVERY = 2  # Windows of two steps: half as many synchronizations, and three windows remain after the first two.


@dataclass(frozen=True, slots=True)
class Probe:
    """How one short run ended."""

    run: Path
    state: str
    """State in status.json."""
    reason: str
    tokens_per_s: float | None
    peak_memory_bytes: float | None
    """Peak of the rank with the most memory."""
    failure: Failure | None = None

    @property
    def fits(self) -> bool:
        """Whether the run finished."""
        return self.state == "finished"

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out; the kernel sends SIGKILL if the host has none left."""
        ended = self.failure is not None and (self.failure.kind == "oom" or self.failure.signal == "SIGKILL")
        return self.state == "oom" or (self.state == "failed" and ended)


def terms(steps: int, schedule: str) -> list[str]:
    """Return overrides for a short run without side effects and warm-up; phases of `wsd` must not overlap."""
    short = [f"schedule.warmup_steps={steps}"] if schedule == "wsd" else []
    return [f"train.steps={steps}", f"train.log_every={LOG_EVERY}", *QUIET, *short]


def probe(overrides: Sequence[str], config_dir: Path | None, home: Path) -> Probe:
    """Run once to its end, with its run folder in `home`; DtkError with the error line if it could not start."""
    folder = [] if config_dir is None else ["--config-dir", str(config_dir)]
    return _read(run_short([*folder, *overrides], home))


def _read(run: Path) -> Probe:
    details = read_details(run)
    status = details.status
    failure = status.failure if status else None
    reason = "" if status is None else failure.reason if failure else status.reason
    return Probe(run, details.run.state, reason, *speed_and_peak(details), failure)


@dataclass(slots=True)
class Trials:
    """All probes of one command."""

    overrides: list[str]
    """The typed overrides, and those that make a run short."""
    config_dir: Path | None
    home: Path
    show: Progress
    ends_s: float
    """No probe starts after this time of the monotonic clock."""
    probes: dict[Candidate, dict[int, Probe]] = field(default_factory=dict)
    """Candidate -> round -> probe."""
    stopped: str = ""
    """Why not all repeats were measured."""

    def try_once(self, candidate: Candidate, number: int, label: str) -> Probe | None:
        """Run one probe; None if the time is up, DtkError if the run could not start."""
        if time.monotonic() > self.ends_s:
            self.stopped = "the time is up; raise it with --limit-s"
            return None
        began_s = time.monotonic()
        self.show(f"{label}: {candidate.override}")
        result = probe([*self.overrides, candidate.override], self.config_dir, self.home)
        self.probes.setdefault(candidate, {})[number] = result
        self.show(f"{label}: {candidate.override}: {outcome_text(result)} ({time.monotonic() - began_s:.0f} s)")
        return result

    def rounds(self, candidates: Sequence[Candidate], first: int, last: int) -> None:
        """Repeat all candidates in turn, `first` to `last`; one that does not finish is not tried again."""
        for number in range(first, last + 1):
            for at, candidate in enumerate(candidates, 1):
                if any(not probe.fits for probe in self.probes.get(candidate, {}).values()):
                    continue
                label = f"repeat {number} of {last}, {at} of {len(candidates)}"
                if self.try_once(candidate, number, label) is None:
                    return


def outcome_text(probe: Probe) -> str:
    """Return `12,345 tokens/s`, `out of memory`, `failed: ...`"""
    if probe.out_of_memory:
        return "out of memory"
    if not probe.fits:
        return f"{probe.state}: {probe.reason}" if probe.reason else probe.state
    return "finished" if probe.tokens_per_s is None else f"{probe.tokens_per_s:,.0f} tokens/s"
