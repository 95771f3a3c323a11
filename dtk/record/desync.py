"""Whether ranks called different collectives at one position of a group, or stand still, and in whose words to say it.

Pure functions over what the ranks report (`Place`): the live watch and the launcher's look at dead ranks share them.
A verdict blames only ranks that the reports single out; a tie is said to be a tie.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnostics.artifacts import RunPaths, Verdict
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.ring import RingFile
from diagnostics.evidence.ring_format import RingDump, RingRecord

SHOWN = 8
"""Ranks named one by one; further ones are counted."""

History = tuple[int, tuple[int, ...]]
"""Calls of one rank on one group, and the rolling hash after each of the last ones."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank is, or what it called at one position."""

    rank: int
    call: str
    """`all_reduce [1024] float32 SUM`; empty when it is outside any call."""
    site: str
    """`train.py:12 in step`"""
    group: str = ""
    position: int = 0
    signature: int = 0
    step: int | None = None
    region: str | None = None


def first_difference(histories: Mapping[int, History]) -> int | None:
    """The first known position at which two ranks of a group called something different; None when none did.

    Only hashes after equally many calls are compared, so a rank may be ahead of the others.
    """
    ordered = sorted(histories.items(), key=lambda item: (item[1][0], item[0]))
    for (_, (count, one)), (_, (ahead, other)) in itertools.pairwise(ordered):
        # Equal hashes after n calls mean n equal calls, so comparing neighbours compares all.
        skip = ahead - count
        length = min(len(one), len(other) - skip)
        if length <= 0 or count == 0:
            continue
        mine, theirs = one[len(one) - length :], other[len(other) - skip - length : len(other) - skip]
        if mine[-1] != theirs[-1]:
            first = next(i for i in range(length) if mine[i] != theirs[i])
            return count - length + 1 + first
    return None


def describe(record: RingRecord) -> str:
    """A call in one phrase: `broadcast [8] float32 root 1`."""
    sizes = (record.input_sizes or record.output_sizes).removeprefix("[").removesuffix("]")
    name = f"{record.user_op} ({record.op})" if record.user_op else record.op
    parts = [name, sizes[:60], record.dtype, record.reduce_op]
    if record.root is not None:
        parts.append(f"peer {record.root}" if record.is_p2p else f"root {record.root}")
    return " ".join(part for part in parts if part)


def site(record: RingRecord) -> str:
    """`train.py:12 in step`"""
    return f"{Path(record.file).name}:{record.line} in {record.function}" if record.file else "an unknown place"


def place_at(ring: RingDump, group: str, position: int) -> Place | None:
    """What a rank called at a position of a group, as its ring holds it."""
    for record in reversed(ring.records):
        if record.seq == position and not record.is_p2p and record.group.key == group:
            return Place(
                rank=ring.rank,
                call=describe(record),
                site=site(record),
                group=group,
                position=position,
                signature=record.signature,
                step=record.step,
                region=record.region or None,
            )
    return None


def desync(places: list[Place], attempt: int, time_s: float) -> Verdict:
    """The verdict of a proven difference, from what each known rank called there."""
    sides: dict[int, list[Place]] = {}
    for place in sorted(places, key=lambda p: p.rank):
        sides.setdefault(place.signature, []).append(place)
    ordered = sorted(sides.values(), key=lambda side: (-len(side), side[0].rank))
    tie = len(ordered) < 2 or len(ordered[0]) == len(ordered[1])
    blamed = [] if tie else sorted(place.rank for side in ordered[1:] for place in side)
    told = "; ".join(f"{_ranks(side)} called {side[0].call} at {side[0].site}" for side in ordered[:4])
    first = next((p for p in places if p.rank in blamed), places[0])
    return Verdict(
        kind="desync",
        reason=f"ranks called different collectives as number {first.position} of one group: {told}",
        blamed=blamed,
        victims=sorted(p.rank for p in ordered[0]) if blamed else [],
        group=first.group,
        position=first.position,
        step=first.step,
        region=first.region,
        attempt=attempt,
        time_s=time_s,
    )


def stall(places: list[Place], silent: list[int], stood_s: float, attempt: int, time_s: float) -> Verdict:
    """The verdict when nothing moves: who is outside any call while others wait inside one.

    Args:
        places: of the ranks that answered.
        silent: ranks that did not answer.
        stood_s: for how long nothing moved.
        attempt: of the run.
        time_s: wall clock, seconds since 1970.
    """
    inside = [place for place in places if place.call]
    outside = [place for place in places if not place.call]
    late = outside if inside else []
    blamed = sorted([*silent, *(place.rank for place in late)])
    told = [f"{_ranks(side)} waits in {side[0].call} at {side[0].site}" for side in _alike(inside)[:4]]
    told = [f"{_ranks(side)} stands at {side[0].site}, outside any collective" for side in _alike(outside)[:4]] + told
    if silent:
        told.insert(0, f"{_named(silent)} does not answer: it is stopped, or native code holds Python's lock")
    first = next((p for p in places if p.rank in blamed), places[0] if places else None)
    return Verdict(
        kind="stall",
        reason=f"nothing moved for {stood_s:.0f} s: {'; '.join(told)}",
        blamed=blamed,
        victims=sorted(place.rank for place in inside) if blamed else [],
        step=first.step if first else None,
        region=first.region if first else None,
        attempt=attempt,
        time_s=time_s,
    )


def find_desync(paths: RunPaths, attempt: int, world_size: int, time_s: float) -> Verdict | None:
    """A proven difference between the rings that the ranks of an attempt left, if there is one."""
    known: dict[tuple[str, int], int] = {}
    differing: set[tuple[str, int]] = set()
    for ring in _rings(paths, attempt, world_size):
        for record in ring.records:
            if not record.is_p2p:
                where = (record.group.key, record.seq)
                if known.setdefault(where, record.signature) != record.signature:
                    differing.add(where)
    if not differing:
        return None
    group, position = min(differing, key=lambda where: (where[1], where[0]))
    places = [place_at(ring, group, position) for ring in _rings(paths, attempt, world_size)]
    return desync([place for place in places if place is not None], attempt, time_s)


def _rings(paths: RunPaths, attempt: int, world_size: int) -> Iterator[RingDump]:
    """One ring after another, so that memory does not grow with the ranks."""
    for rank in range(world_size):
        try:
            ring = RingFile(paths.ring(rank), "", rank, Limits()).read()
        except (OSError, ValueError):
            continue
        if ring.attempt == attempt and ring.sound:
            yield ring


def _alike(places: list[Place]) -> list[list[Place]]:
    """Ranks at the same place together, the largest such set first."""
    sets: dict[tuple[str, str], list[Place]] = {}
    for place in sorted(places, key=lambda p: p.rank):
        sets.setdefault((place.call, place.site), []).append(place)
    return sorted(sets.values(), key=lambda side: (-len(side), side[0].rank))


def _ranks(side: list[Place]) -> str:
    return _named([place.rank for place in side])


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
