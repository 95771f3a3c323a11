"""The state of the job together with what the causes that have not moved yet write down about each other."""

from dataclasses import dataclass, field

from diagnostics.analysis.job_state import STALL_S, JobState
from diagnostics.evidence.endings import Ending

__all__ = ["STALL_S", "Context"]


@dataclass(slots=True)
class Context(JobState):
    """One value that the causes share."""

    blamed: set[int] = field(default_factory=set)
    """Ranks that a mismatch was pinned on; what they and their groups do afterwards follows from it."""
    settled: set[int] = field(default_factory=set)
    """Ranks whose waiting a mismatch explains."""
    siblings: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Causes that the first divergence is not: why, and what was measured."""

    @property
    def ends(self) -> dict[int, Ending]:
        """How the ranks ended."""
        return self.endings
