"""Probes of several candidates in turns, until all repeats are taken or the time is up. Reports nothing."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dtk.tune.candidates import Candidate
from dtk.tune.probe import Probe, probe

Progress = Callable[[str], None]


@dataclass(slots=True)
class Trials:
    """All probes of one command."""

    overrides: list[str]
    """As typed, and what makes a run short."""
    config_dir: Path | None
    home: Path
    say: Progress
    ends_s: float
    """No probe starts after this, by the monotonic clock."""
    probes: dict[Candidate, dict[int, Probe]] = field(default_factory=dict)
    """Candidate -> round -> probe."""
    stopped: str = ""
    """Why not all repeats were taken."""

    def try_once(self, candidate: Candidate, number: int, label: str) -> Probe | None:
        """One probe; None where the time is up.

        Args:
            candidate: what is tried.
            number: of the repeat.
            label: what is told before the candidate.

        Raises:
            DtkError: the run could not start.
        """
        if time.monotonic() > self.ends_s:
            self.stopped = "the time is up; raise it with --limit-s"
            return None
        began_s = time.monotonic()
        self.say(f"{label}: {candidate.override}")
        result = probe([*self.overrides, candidate.override], self.config_dir, self.home)
        self.probes.setdefault(candidate, {})[number] = result
        self.say(f"{label}: {candidate.override}: {outcome_text(result)} ({time.monotonic() - began_s:.0f} s)")
        return result

    def rounds(self, candidates: Sequence[Candidate], first: int, last: int) -> None:
        """Repeats `first` to `last` of all candidates, one after the other in each round.

        One that does not come to its end is not tried again.
        """
        for number in range(first, last + 1):
            for at, candidate in enumerate(candidates, 1):
                if any(not probe.fits for probe in self.probes.get(candidate, {}).values()):
                    continue
                label = f"repeat {number} of {last}, {at} of {len(candidates)}"
                if self.try_once(candidate, number, label) is None:
                    return


def outcome_text(probe: Probe) -> str:
    """`12,345 tokens/s`, `out of memory`, `failed: ...`"""
    if probe.out_of_memory:
        return "out of memory"
    if not probe.fits:
        return f"{probe.state}: {probe.reason}" if probe.reason else probe.state
    return "finished" if probe.tokens_per_s is None else f"{probe.tokens_per_s:,.0f} tokens/s"
