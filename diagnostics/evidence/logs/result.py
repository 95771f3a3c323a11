"""What one log says, as `reader.read` gives it, and how much of it is kept. Reads nothing itself."""

from dataclasses import dataclass, field

from diagnostics.evidence.model import LogFact, RankError, Stacks

MAX_ERRORS = 2000
MAX_STACKS = 4096
TEXT = 400
"""Characters of a line that a fact keeps."""


@dataclass(slots=True)
class LogRead:
    """What one log says."""

    file: str
    facts: list[LogFact] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    stacks: list[Stacks] = field(default_factory=list)
    processes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """NCCL's `host:pid` -> ranks in the largest communicator, rank in it."""
    dropped: int = 0
    """Facts beyond the limits."""
    local: int = 0
    """Ranks within the node that torchrun's prefixes name; 0 when there are none. Records that only such a prefix
    gives a rank have -1 - local rank instead, until `settle.settle_ranks` knows the node."""
    offset: int | None = None
    """Global minus local rank on this node, where torchrun's list of failures says so."""
    problem: str = ""
    """Why it was not read to its end."""

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.facts or self.errors or self.stacks)
