"""Whether ranks called different collectives at one position of a group, or stand still, and in whose words to say it.

Pure functions over what the ranks report (`Place`): the live watch and the launcher's look at dead ranks share them.
A verdict blames only ranks that the reports single out; a tie is said to be a tie.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths, Verdict
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import RingDump, RingRecord
from diagnostics.evidence.ring.groups import format_ranks, parse_ranks

SHOWN = 8
"""Ranks named one by one; further ones are counted."""
LOOKED_BACK = 32
"""Calls before a difference at which ranks may have parted without a difference."""

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
    group_name: str = ""
    """What the user knows the group by."""
    members: str = ""
    """Global ranks of the group, as `diagnostics.evidence.ring.groups.format_ranks` writes them."""
    earlier: tuple[tuple[int, str, str], ...] = ()
    """Position, call and site of the calls before it in the group, the youngest first."""


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
    sizes = (record.input_sizes or record.output_sizes).removeprefix("[").removesuffix("]").replace("[]", "scalar")
    name = f"{record.user_op} ({record.op})" if record.user_op else record.op
    parts = [name, sizes[:60], record.dtype, record.reduce_op]
    if record.root is not None:
        parts.append(f"peer {record.root}" if record.is_p2p else f"root {record.root}")
    return " ".join(part for part in parts if part)


def site(record: RingRecord) -> str:
    """`train.py:12 in step`"""
    return f"{Path(record.file).name}:{record.line} in {record.function}" if record.file else "an unknown place"


def group_name(record: RingRecord) -> str:
    """A group's description, else its name."""
    described = record.group.desc not in ("", "undefined")
    return record.group.desc if described else record.group.name


def place_of(record: RingRecord, rank: int, step: int | None) -> Place:
    """A rank inside a call."""
    return Place(
        rank,
        describe(record),
        site(record),
        record.group.key,
        record.seq,
        step=step,
        region=record.region or None,
        group_name=group_name(record),
        members=format_ranks(record.group.ranks),
    )


def place_at(ring: RingDump, group: str, position: int) -> Place | None:
    """What a rank called at a position of a group and before it, as its ring holds it."""
    known = {record.seq: record for record in ring.records if not record.is_p2p and record.group.key == group}
    record = known.get(position)
    if record is None:
        return None
    before = (known.get(position - back) for back in range(1, LOOKED_BACK + 1))
    earlier = itertools.takewhile(lambda one: one is not None, before)
    return Place(
        rank=ring.rank,
        call=describe(record),
        site=site(record),
        group=group,
        position=position,
        signature=record.signature,
        step=record.step,
        region=record.region or None,
        group_name=group_name(record),
        earlier=tuple((one.seq, describe(one), site(one)) for one in earlier if one is not None),
    )


def desync(places: list[Place], attempt: int, time_s: float) -> Verdict:
    """The verdict of a proven difference, from what each known rank called there."""
    sides: dict[int, list[Place]] = {}
    for place in sorted(places, key=lambda p: p.rank):
        sides.setdefault(place.signature, []).append(place)
    ordered = sorted(sides.values(), key=lambda side: (-len(side), side[0].rank))
    tie = len(ordered) < 2 or len(ordered[0]) == len(ordered[1])
    blamed = [] if tie else sorted(place.rank for side in ordered[1:] for place in side)
    back = _parted_before(ordered)
    first = next((p for p in places if p.rank in blamed), places[0])
    position = first.position - back
    what = "the same collective from different lines" if back else "different collectives"
    then = f" (their calls differ from position {first.position} on)" if back else ""
    told = "; ".join(f"{_ranks(side)} called {_call_before(side[0], back)}" for side in ordered[:4])
    return Verdict(
        kind="desync",
        reason=f"ranks called {what} at position {position} of group {first.group_name or first.group}{then}: {told}",
        blamed=blamed,
        victims=sorted(p.rank for p in ordered[0]) if blamed else [],
        group=first.group,
        position=position,
        step=first.step,
        region=first.region,
        attempt=attempt,
        time_s=time_s,
    )


def _parted_before(sides: list[list[Place]]) -> int:
    """How many calls earlier the sides were already at different lines: their calls fit each other by chance.

    What a rank leaves out or adds shifts the calls after it, and some of those may be equal.
    """
    if len(sides) != 2:
        return 0
    back = 0
    for (_, _, here), (_, _, there) in zip(sides[0][0].earlier, sides[1][0].earlier, strict=False):
        if here == there:
            break
        back += 1
    return back


def _call_before(place: Place, back: int) -> str:
    if not back:
        return f"{place.call} at {place.site}"
    _, call, where = place.earlier[back - 1]
    return f"{call} at {where}"


def stall(
    places: list[Place], silent: list[int], left: Mapping[int, str], stood_s: float, attempt: int, time_s: float
) -> Verdict:
    """The verdict when nothing moves: who is outside any call, or gone, while others wait inside one.

    Args:
        places: of the ranks that answered.
        silent: ranks that did not answer.
        left: ranks that take no more part -> `failed` or `end`. Those that nobody waits for are of no matter.
        stood_s: for how long nothing moved.
        attempt: of the run.
        time_s: wall clock, seconds since 1970.
    """
    inside = [place for place in places if place.call]
    outside = [place for place in places if not place.call]
    awaited = {rank for place in inside for rank in parse_ranks(place.members)}
    gone = {rank: how for rank, how in left.items() if rank in awaited}
    late = outside if inside else []
    blamed = sorted([*silent, *gone, *(place.rank for place in late)])
    told = [
        f"{_ranks(side)} {_verb(side, 'stand')} at {side[0].site}, outside any recorded collective"
        for side in _alike(outside)[:4]
    ]
    told += [f"{_ranks(side)} {_verb(side, 'wait')} in {_inside(side[0])}" for side in _alike(inside)[:4]]
    for how, what in (("end", "ended in order"), ("failed", "failed")):
        if ranks := sorted(rank for rank in gone if gone[rank] == how):
            told.insert(0, f"{named(ranks)} {what} before")
    if silent:
        told.insert(0, f"{named(silent)} does not answer: it is stopped, or native code holds Python's lock")
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
    for ring in _rings(paths, attempt, range(world_size)):
        for record in ring.records:
            if not record.is_p2p:
                where = (record.group.key, record.seq)
                if known.setdefault(where, record.signature) != record.signature:
                    differing.add(where)
    if not differing:
        return None
    group, position = min(differing, key=lambda where: (where[1], where[0]))
    return desync(left_at(paths, attempt, range(world_size), group, position), attempt, time_s)


def left_at(paths: RunPaths, attempt: int, ranks: Iterable[int], group: str, position: int) -> list[Place]:
    """What ranks called at a position of a group, as far as the rings that they left here tell it."""
    places = (place_at(ring, group, position) for ring in _rings(paths, attempt, ranks))
    return [place for place in places if place is not None]


def _rings(paths: RunPaths, attempt: int, ranks: Iterable[int]) -> Iterator[RingDump]:
    """One ring after another, so that memory does not grow with the ranks."""
    for rank in ranks:
        try:
            ring = RingFile(paths.ring(rank), "", rank, Limits()).read()
        except (OSError, ValueError):
            continue
        if ring.attempt == attempt and ring.sound:
            yield ring


def _alike(places: list[Place]) -> list[list[Place]]:
    """Ranks at the same place together, the largest such set first."""
    sets: dict[tuple[str, str, str], list[Place]] = {}
    for place in sorted(places, key=lambda p: p.rank):
        sets.setdefault((place.group, place.call, place.site), []).append(place)
    return sorted(sets.values(), key=lambda side: (-len(side), side[0].rank))


def _inside(place: Place) -> str:
    group = f" of group {place.group_name}" if place.group_name else ""
    return f"{place.call} at {place.site}{group}"


def _verb(side: list[Place], stem: str) -> str:
    return f"{stem}s" if len(side) == 1 else stem


def _ranks(side: list[Place]) -> str:
    return named([place.rank for place in side])


def named(ranks: list[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2 and 5 more`."""
    shown = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
