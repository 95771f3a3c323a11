"""Who is the minority at a position: a vote among the ranks that issued something there. Ties stay ties."""

from collections.abc import Callable
from dataclasses import dataclass

from diagnostics.analysis.histories.align import GroupTable, Survey
from diagnostics.evidence.calls import GroupKey


@dataclass(frozen=True, slots=True)
class Vote:
    """The first position of a group at which the ranks issued different calls."""

    key: GroupKey
    seq: int
    sides: tuple[tuple[int, ...], ...]
    """Ranks that issued the same, the largest side first, equal ones by their lowest rank."""
    numbers: tuple[int, ...]
    """Signature number of each side."""
    silent: tuple[int, ...]
    """Members that left no record of this position."""

    @property
    def tie(self) -> bool:
        """Whether no side is larger than all others."""
        return len(self.sides) > 1 and len(self.sides[0]) == len(self.sides[1])

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks in the minority; at a tie the ranks of all sides."""
        sides = self.sides if self.tie else self.sides[1:]
        return tuple(sorted(rank for side in sides for rank in side))

    @property
    def all(self) -> tuple[int, ...]:
        """Every rank that issued something here."""
        return tuple(sorted(rank for side in self.sides for rank in side))


def first_divergence(survey: Survey, key: GroupKey, table: GroupTable) -> Vote | None:
    """The vote at the first position where a group's ranks differ; None when they agree everywhere."""
    for seq in sorted(table.deviations):
        issued = table.issued_at(seq)
        if len(issued) > 1:
            return vote(key, seq, issued, survey.members(key))
    return None


def vote(key: GroupKey, seq: int, issued: dict[int, list[int]], members: tuple[int, ...]) -> Vote:
    """Count the sides."""
    order: Callable[[tuple[int, list[int]]], tuple[int, int]] = lambda item: (-len(item[1]), item[1][0])  # noqa: E731
    ranked = sorted(issued.items(), key=order)
    present = {rank for _, ranks in ranked for rank in ranks}
    return Vote(
        key=key,
        seq=seq,
        sides=tuple(tuple(ranks) for _, ranks in ranked),
        numbers=tuple(number for number, _ in ranked),
        silent=tuple(rank for rank in members if rank not in present),
    )
