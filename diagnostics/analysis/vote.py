"""Who deviates: the ranks of a group, divided by the calls that they issued at one position, or by a value of each.

Every comparison of ranks decides here, whether it reads dumps, rings, lines of a log, stacks or variables. Few ranks
against many deviate; equal numbers are a tie, unless other evidence decides (`settled`). Ranks for which others wait
need not be a minority: the wait itself shows that they are late. They may be half, but not a majority (`is_majority`),
as what the few wait in may be wrong instead.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.contract.grouping import grouped
from diagnostics.evidence.calls import GroupKey

OF_JOB = GroupKey("", "", "")
"""Stands for the group of votes on what is no call, which have no position: 0."""


class Vote(Struct, frozen=True):
    """The ranks of a group, divided into sides by the call that they issued at one position, or by another value."""

    key: GroupKey
    position: int
    sides: tuple[tuple[int, ...], ...]
    """Ranks that issued the same call; the largest side first, equally large ones by their lowest rank."""
    silent: tuple[int, ...] = ()
    """Members that left no record of this position."""
    settled: bool = False
    """Whether evidence other than the sizes of the sides shows that the first one is right."""

    @property
    def tie(self) -> bool:
        """Whether the two largest sides are equally large, and nothing else shows which one is right."""
        return len(self.sides) > 1 and len(self.sides[0]) == len(self.sides[1]) and not self.settled

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks of all sides but the first; at a tie the ranks of all sides."""
        sides = self.sides if self.tie else self.sides[1:]
        return tuple(sorted(rank for side in sides for rank in side))

    @property
    def present(self) -> tuple[int, ...]:
        """Every rank that issued something here."""
        return tuple(sorted(rank for side in self.sides for rank in side))

    @property
    def has_majority(self) -> bool:
        """Whether more ranks are on the first side than on all others together, the silent ones included."""
        return bool(self.sides) and is_majority(len(self.sides[0]), len(self.present) + len(self.silent))

    def side_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that issued the same call as this one."""
        return next((side for side in self.sides if rank in side), (rank,))


def count_votes(key: GroupKey, position: int, calls: Mapping[int, Hashable], members: Iterable[int] = ()) -> Vote:
    """Divide the members of a group into sides at one position; `calls` maps ranks to what each of them issued."""
    sides = grouped((calls[rank], rank) for rank in sorted(calls))
    largest_first = sorted(map(tuple, sides.values()), key=lambda side: (-len(side), side))
    return Vote(key, position, tuple(largest_first), tuple(rank for rank in members if rank not in calls))


def is_majority(count: int, size: int) -> bool:
    """Return whether so many, such as ranks, are more than half of all; of two halves, neither is."""
    return 2 * count > size


def is_minority(count: int, size: int) -> bool:
    """Return whether so many are fewer than half of all, so that the others are the majority."""
    return is_majority(size - count, size)


def behind(counts: Mapping[int, int], size: int) -> tuple[int, ...]:
    """Return the ranks with the lowest of these counts, if they are fewer than half of their group."""
    least = min(counts.values(), default=0)
    ranks = tuple(sorted(rank for rank, count in counts.items() if count == least))
    return ranks if is_minority(len(ranks), size) else ()


def settled(call: tuple[GroupKey, int], right: Iterable[int], deviating: Iterable[int], or_tie: bool = False) -> Vote:
    """Return the vote of two sides of which evidence of another kind than their sizes shows the right one.

    `call` is the group and the position. The first rank of each side stands for it. With `or_tie` only their sizes
    show the right one, so that they are a tie if they are equally large.
    """
    return Vote(*call, (tuple(right), tuple(deviating)), settled=not or_tie)


def supported(vote: Vote, others: Sequence[int]) -> Vote:
    """Settle a tie if other evidence supports one of the tied sides only, such as other groups of this kind.

    `others` says for each side how much supports it: how many ranks of other groups issued its call, or whether.
    """
    tied = [side for side in vote.sides if len(side) == len(vote.sides[0])]
    right = [side for side, count in zip(tied, others, strict=False) if count]
    if not vote.tie or len(right) != 1:
        return vote
    return replace(vote, sides=(right[0], *(side for side in vote.sides if side != right[0])), settled=True)
