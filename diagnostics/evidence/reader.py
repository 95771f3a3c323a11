"""The type of a reader of one kind of evidence, and of its result. Reads nothing itself."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, field

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import LogFact, Owner, RankError, Stacks, rank_in_name


class Source(Struct, frozen=True):
    """A file that a reader recognised."""

    path: Path
    file: str
    """Relative to the evidence's root, as the report prints it."""
    head: bytes
    """Its first bytes, decompressed."""
    limits: Limits
    owner: Owner
    """Which rank it belongs to, by words in its path that mean a rank."""


class Handle(Struct, frozen=True):
    """A file that is too large to be held: each kind adds its name and `load()`.

    `load()` raises OSError for a file that cannot be read, and ValueError for one that is damaged, too large or none.
    """

    kind: ClassVar[str]
    """As of its reader, under which `Evidence.handles` finds it."""
    path: Path
    file: str
    """Relative to the evidence's root."""
    rank: int | None
    """As its name says; None when it does not."""
    limits: Limits


class Contents(Struct):
    """What one file says."""

    file: str
    handles: list[Any] = field(default_factory=list)
    """For files too large to be held: objects with `rank`, `file` and `load()`."""
    facts: list[LogFact] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    stacks: list[Stacks] = field(default_factory=list)
    earlier: list[list[RankError]] = field(default_factory=list)
    """Errors of each attempt before the last one, where all of them wrote into this file."""
    processes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """NCCL's `host:pid` -> ranks in the largest communicator, rank in it."""
    dropped: int = 0
    """Facts beyond the limits."""
    local: int = 0
    """Ranks within the node that torchrun's prefixes name; 0 when there are none. Records that only such a prefix
    gives a rank have -1 - local rank instead, until `assign_ranks` knows the node."""
    offset: int | None = None
    """Global minus local rank on this node, where torchrun's list of failures says so."""
    problem: str = ""
    """Why it was not read to its end."""

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.handles or self.facts or self.errors or self.stacks)


class Reader(Struct, frozen=True):
    """One kind of evidence."""

    kind: str
    """`flight`, `log`: the key of `Evidence.files`, and the kind under coverage."""
    recognise: Callable[[bytes], bool]
    """Whether a file that begins with these bytes is one."""
    open: Callable[[Source], Contents]
    """Read a small file, or make a handle for a large one. Raises OSError or ValueError, whose text is shown."""
    title: str = ""
    """What it reads, in the plural; empty for files that only come with others."""
    order: int = 0
    """Readers are asked in ascending order; one that recognises loosely comes later."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of files that hold nothing but evidence: an empty one, or a folder of that name, is worth a line."""
    not_suffixes: frozenset[str] = frozenset()
    """Suffixes of files that are not read even if their content fits."""
    per_rank: str = ""
    """What a rank without such a file lacks (`dump`); empty where not every rank writes one."""
    facts: tuple[str, ...] = ()
    """Kinds of its facts, where they are counted under this kind rather than as lines of logs."""
    world_size: Callable[[bytes], int | None] = lambda head: None
    """The number of ranks that the first bytes of a file state."""
    groups: Callable[[Sequence[Any], bool], list[list[Any]]] | None = lambda handles, in_run: [[*handles]]
    """Sort a rank's handles into groups of which one each is kept; the second argument says whether they lie in a run
    folder of dtk. None where one file may hold several ranks, so that all are kept."""
    contradiction: Callable[[Any, Any], str] = lambda one, other: ""
    """Why two handles of one rank cannot be of one job; empty when they can."""


def opens(
    handle: Callable[..., Any], rank_of: Callable[[Path], int | None] = rank_in_name
) -> Callable[[Source], Contents]:
    """Return an `open` that makes a handle from path, file, rank and limits."""

    def open_(source: Source) -> Contents:
        return Contents(source.file, [handle(source.path, source.file, rank_of(source.path), source.limits)])

    return open_
