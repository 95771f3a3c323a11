"""How a rank's peak changes with the number of ranks, from what was measured at one number.

Model states shrink as they are sharded further, what is gathered whole stays, outputs that hold every
rank's part grow with the ranks. Rules: Rajbhandari et al. 2020; measured exponents of the memory reference.
"""

from dataclasses import dataclass

from diagnostics.analysis.memory.job import Situation
from diagnostics.detectors.memory.say import size

RANKS = 64
"""The job that a small one is a rehearsal of."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One rank's peak at another number of ranks."""

    ranks: int
    peak_bytes: int
    without_bytes: int
    """The same without what the finding is about."""

    def text(self) -> str:
        """`on 64 ranks a rank would need 120 MiB, without it 40 MiB`"""
        return f"on {self.ranks} ranks a rank would need {size(self.peak_bytes)}, without it {size(self.without_bytes)}"


def grown(situation: Situation, fixed_bytes: int = 0, linear_bytes: int = 0) -> Prediction | None:
    """The peak on `RANKS` ranks; None when the peak or the number of ranks is not known, or it is no smaller.

    Args:
        situation: measured.
        fixed_bytes: of the finding, the same on any number of ranks.
        linear_bytes: of the finding, proportional to the ranks.
    """
    world, peak = situation.facts.world_size, situation.peak()
    if not world or peak is None or world >= RANKS:
        return None
    now, then = situation.states(), situation.states(RANKS)
    states = then.total - now.total if now is not None and then is not None else 0
    more = linear_bytes * RANKS // world
    rest = max(0, peak - fixed_bytes - linear_bytes + states)
    return Prediction(RANKS, rest + fixed_bytes + more, rest)
