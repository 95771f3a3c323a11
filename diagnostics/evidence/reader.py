"""The types of a reader for one kind of evidence and of its result. Reads nothing itself."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from msgspec import Struct, field

from diagnostics.contract.formatting import Phrase
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import LogFact, Owner, Problem, RankError, Stacks, rank_in_name

H = TypeVar("H", bound=Any)
T = TypeVar("T")


class Source(Struct, frozen=True):
    """A file recognized by a reader."""

    path: Path
    file: str
    """Path relative to the evidence's root, as printed in the report."""
    head: bytes
    """First bytes, decompressed."""
    limits: Limits
    owner: Owner
    """Rank, attempt and node according to the path."""


class Handle(Struct, frozen=True):
    """A file that is too large to be kept in memory; each kind adds its name and `load()`.

    `load()` raises OSError for a file that cannot be read, and ValueError for one that is damaged, too large or none.
    """

    kind: ClassVar[str]
    """Kind of its reader, the key for `Evidence.handles`."""
    path: Path
    file: str
    """Path relative to the evidence's root."""
    rank: int | None
    """Rank according to the file's name; None if it has none."""
    limits: Limits


class Contents(Struct):
    """Content of one file."""

    file: str
    handles: list[Any] = field(default_factory=list)
    """Files too large to be kept in memory: objects with `rank`, `file` and `load()`."""
    facts: list[LogFact] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    stacks: list[Stacks] = field(default_factory=list)
    earlier: list[list[RankError]] = field(default_factory=list)
    """Errors of each attempt before the last one, if all of them wrote to this file."""
    processes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """NCCL's `host:pid` -> ranks in the largest communicator, rank in it."""
    dropped: int = 0
    """Number of facts beyond the limits."""
    speak: set[int] = field(default_factory=set)
    """Ranks in the prefixes of a log's lines."""
    local: int = 0
    """Ranks within the node that torchrun's prefixes name; 0 when there are none. Records that only such a prefix
    gives a rank have -1 - local rank instead, until `assign_ranks` knows the node."""
    offset: int | None = None
    """Global minus local rank on this node, according to torchrun's list of failures."""
    problem: str = ""
    """Why the file was not read to its end: a name in `problems.yaml`, or a message."""

    def __bool__(self) -> bool:
        return bool(self.handles or self.facts or self.errors or self.stacks)


class Reader(Struct, frozen=True):
    """One kind of evidence."""

    kind: str
    """`flight`, `log`: the key of `Evidence.files`, and the kind under coverage."""
    recognise: Callable[[bytes], bool]
    """Return whether a file with these first bytes is of this kind."""
    open: Callable[[Source], Contents]
    """Read a small file, or make a handle for a large one. Raises OSError or ValueError, whose text is shown."""
    title: str = ""
    """Description of the files, in the plural; empty for files that only accompany others."""
    order: int = 0
    """Readers are tried in ascending order; less specific ones come later."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of files that hold nothing but evidence: an empty one, or a folder of that name, is worth a line."""
    not_suffixes: frozenset[str] = frozenset()
    """Suffixes of files that are never read, even if their content matches."""
    per_rank: str = ""
    """What a rank without such a file lacks (`dump`); empty if not every rank writes one."""
    of_rank: bool = False
    """Whether each of its files belongs to one rank, the one in its name."""
    has_calls: bool = False
    """Whether `load()` of its handles returns the calls of a rank (`calls.CallFile`)."""
    facts: tuple[str, ...] = ()
    """Kinds of its facts that are counted under this kind rather than as log lines."""
    world_size: Callable[[bytes], int | None] = lambda head: None
    """Returns the world size in the first bytes of a file."""
    groups: Callable[[Sequence[Any], bool], list[list[Any]]] | None = lambda handles, in_run: [[*handles]]
    """Sort a rank's handles into groups of which one each is kept; the second argument says whether they lie in a run
    folder of dtk. None where one file may hold several ranks, so that all are kept."""
    contradiction: Callable[[Any, Any], Phrase | None] = lambda mine, other: None
    """Returns why two handles of one rank cannot be from one job; None if they can."""


def opens(
    handle: Callable[..., Any], rank_of: Callable[[Path], int | None] = rank_in_name
) -> Callable[[Source], Contents]:
    """Return an `open` function that creates a handle from path, file, rank and limits."""

    def open_(source: Source) -> Contents:
        return Contents(source.file, [handle(source.path, source.file, rank_of(source.path), source.limits)])

    return open_


def loaded(
    handles: Iterable[H], load: Callable[[H], T], problems: list[Problem] | None = None, kind: str = ""
) -> Iterator[tuple[H, T]]:
    """Yield readable files with their content. Others become problems of `kind`, or else of the handle's kind; without
    a list of `problems` they are omitted, as they are reported elsewhere.
    """
    for handle in handles:
        try:
            content = load(handle)
        except (OSError, ValueError) as error:
            if problems is not None:
                why = str(error) or type(error).__name__
                problems.append(Problem(kind or handle.kind, handle.file, why, unread=True))
            continue
        yield handle, content
