"""Formats a verdict of the live watch: which ranks called what, or where they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnostics.contract.formatting import file_name, ranks_spoken
from diagnostics.evidence.calls import Call

_DEPARTURES = (("failed", "failed"), ("end", "exited normally"))  # How a rank left -> wording, in order of the text.


@dataclass(frozen=True, slots=True)
class Place:
    """The current place of one rank."""

    rank: int
    call: str
    """`all_reduce [1024] float32 SUM`; empty if the rank is outside any call."""
    site: str
    """`train.py:12 in step`"""
    group: str = ""
    step: int | None = None
    region: str | None = None
    group_name: str = ""
    """The group's name for users."""
    members: str = ""
    """Global ranks of the group, as formatted by `diagnostics.evidence.ring.format.format_ranks`."""


def desync(group: str, first_position: int, position: int, sides: Sequence[tuple[Sequence[int], Call]]) -> str:
    """Describe the calls that differ between ranks.

    Ranks diverged at `first_position`, which may be before `position`, where their calls differ; `sides` is empty if
    that was too long ago.
    """
    if not sides:
        return f"ranks called different collectives at position {position}, too long ago to be still recorded"
    what = "the same collective from different lines" if first_position < position else "different collectives"
    then = f" (their calls differ from position {position} on)" if first_position < position else ""
    calls = "; ".join(f"{ranks_spoken(ranks)} called {call.text} at {site_of(call)}" for ranks, call in sides)
    return f"ranks called {what} at position {first_position} of group {group}{then}: {calls}"


def stall(stood_s: float, silent: Sequence[int], departed: Mapping[int, str], sides: Sequence[Sequence[Place]]) -> str:
    """Describe where stalled ranks are.

    `stood_s` are seconds without progress; `departed` ranks no longer participate -> `failed` or `end`; `sides` are the
    others, grouped by place.
    """
    clauses = []
    if silent:
        clauses.append(f"{ranks_spoken(silent)} does not answer: it is stopped, or native code holds the GIL")
    for how, words in _DEPARTURES:
        if ranks := sorted(rank for rank in departed if departed[rank] == how):
            clauses.append(f"{ranks_spoken(ranks)} {words} before")
    for side in sides:
        place, s = side[0], "s" if len(side) == 1 else ""
        does = f"wait{s} in {place.call}" if place.call else f"{'is' if s else 'are'}"
        group = f" of group {place.group_name}" if place.group_name else ""
        group = group if place.call else ", outside any recorded collective"
        clauses.append(f"{ranks_spoken([other.rank for other in side])} {does} at {place.site}{group}")
    return f"no progress for {stood_s:.0f} s: {'; '.join(clauses)}"


def site_of(call: Call) -> str:
    """Return `train.py:12 in step`."""
    if call.site is None:
        return "an unknown place"
    within = f" in {call.site.function}" if call.site.function else ""
    return f"{file_name(call.site.file)}:{call.site.line}{within}"
