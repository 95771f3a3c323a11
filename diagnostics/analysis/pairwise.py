"""Compares what ranks send and what their peers expect, pair by pair: splits of an all_to_all, messages of a pipeline.
The preflight compares its simulated calls in the same way (`misfits`).

`divergence` compares calls that all ranks have to make alike, and decides who differs by the majority. Here the two
sides need not be alike but fit each other, which is no part of what makes two calls the same (`divergence.identity`).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

from msgspec import Struct

from diagnostics.analysis.run_records import joint_group, layout
from diagnostics.analysis.vote import is_minority
from diagnostics.contract.mesh import MODEL, ORDER, Mesh
from diagnostics.evidence.calls import SIMULATED
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.reader import loaded
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import RingRecord

_REGIONS = ("recv ", "send ")  # Prefixes of message regions, inside which a rank waits for its peer.
Records = Mapping[int, tuple[RingRecord, ...]]  # Rank -> its last calls, oldest first.


C = TypeVar("C")


class Misfit(Struct, Generic[C], frozen=True):
    """A pair of ranks of which one does not expect what the other sends."""

    sender: int
    receiver: int
    sent: int
    """Number of rows, of bytes, of elements of a message, or of messages of a step."""
    expected: int
    calls: tuple[C, C]
    """The calls of the sender and of the receiver, or their numbers."""


Sides = Mapping[int, tuple[Sequence[int], Sequence[int], C]]
"""Rank -> what it sends to each of its group, what it expects of each, and its call; one number: all, none: 0."""


def misfits(sides: Sides[C], members: Sequence[int], root: int | None = None) -> Iterator[Misfit[C]]:
    """Yield the pairs of ranks that do not fit each other; with a `root`, only this place sends or receives."""
    places = {rank: place for place, rank in enumerate(members)}
    for sender, (sent, _, call) in sides.items():
        for receiver, (_, expected, other) in sides.items():
            gives, gets = _share(sent, places[receiver]), _share(expected, places[sender])
            if gives != gets and root in (None, places[sender], places[receiver]):
                yield Misfit(sender, receiver, gives, gets, (call, other))


def _share(sizes: Sequence[int], place: int) -> int:
    return sizes[place] if len(sizes) > 1 else sizes[0] if sizes else 0


class Case(Struct, frozen=True):
    """The earliest misfits and the ranks that caused them."""

    misfits: tuple[Misfit[RingRecord], ...]
    culprits: tuple[int, ...]
    """Ranks at fault; all of them if neither side can be identified as wrong."""
    group: tuple[int, ...]
    shapes: bool = True
    """Whether the messages of a pipeline differ in size rather than in number."""

    @property
    def victims(self) -> tuple[int, ...]:
        """The other ranks of the group."""
        return tuple(rank for rank in self.group if rank not in self.culprits)


class Pairs(Struct, frozen=True):
    """Calls of all ranks that can be compared pair by pair."""

    evidence: Evidence
    layout: Mesh | None
    records: Records
    files: Mapping[int, str]
    """Rank -> its ring file."""


def pairs(evidence: Evidence) -> Pairs:
    """Read all rings; a damaged one is omitted and reported under coverage."""
    records: dict[int, tuple[RingRecord, ...]] = {}
    files: dict[int, str] = {}
    rings = [*evidence.handles(RingFile), *evidence.files.get(SIMULATED, ())]
    for file, ring in loaded(rings, lambda file: file.read()):
        if ring.records and (evidence.run is None or ring.attempt == evidence.run.attempt):
            records[ring.rank], files[ring.rank] = ring.records, file.file
    return Pairs(evidence, layout(evidence), records, files)


def first_misfit(calls: Pairs) -> Case | None:
    """Return the first all_to_all whose splits do not match; None if there is none.

    Of a pair that does not fit either rank may be wrong, so the culprits are those in most pairs, if they are few.
    """
    exchanges: dict[tuple[str, int], dict[int, RingRecord]] = {}
    for rank, records in calls.records.items():
        for record in records:
            if record.splits and rank in record.group.ranks:
                exchanges.setdefault((record.group.key, record.seq), {})[rank] = record
    for by_rank in sorted(exchanges.values(), key=lambda by_rank: min(call.time_s for call in by_rank.values())):
        members = next(iter(by_rank.values())).group.ranks
        tables = {rank: (*table, call) for rank, call in by_rank.items() if (table := _splits(call, len(members)))}
        if misfitting := tuple(misfits(tables, members)):
            counts = Counter(rank for m in misfitting for rank in {m.sender, m.receiver})
            most = {rank for rank, count in counts.items() if count == max(counts.values())}
            culprits = most if is_minority(len(most), len(members)) else counts.keys()
            return Case(misfitting, tuple(sorted(culprits)), members)
    return None


def _splits(call: RingRecord, ranks: int) -> tuple[list[int], list[int]] | None:
    """Return (rows sent to each rank, rows expected from each rank); None if they were not recorded."""
    try:
        sides, sizes = json.loads(call.splits), [json.loads(call.input_sizes), json.loads(call.output_sizes)]
        tables = [side or [size[0][0] // ranks] * ranks for side, size in zip(sides, sizes, strict=True)]
    except (ValueError, TypeError, IndexError, RecursionError):
        return None
    whole = all(len(table) == ranks and all(isinstance(rows, int) for rows in table) for table in tables)
    return (tables[0], tables[1]) if whole and len(tables) == 2 else None


def pipeline_misfit(calls: Pairs) -> Case | None:
    """Return the pipeline whose neighbours do not exchange the same messages; None if there is none."""
    if calls.layout is None or calls.layout.pp == 1:
        return None
    between: dict[tuple[int, int, str, int | None], list[RingRecord]] = {}
    for rank, records in calls.records.items():
        for record in records:
            if record.is_p2p and record.root is not None and record.root in calls.records:
                key = (rank, record.root, record.op.removeprefix("i"), record.step)
                between.setdefault(key, []).append(record)
    last: dict[int, int] = {}
    for rank, _, _, step in between:
        if step is not None:
            last[rank] = max(last.get(rank, step), step)
    joined = {(rank, peer) if op == "send" else (peer, rank) for rank, peer, op, _ in between}
    of_size, of_number = list[Misfit[RingRecord]](), list[Misfit[RingRecord]]()
    for a, b in sorted(pair for pair in joined if pair[1] in calls.layout.group("pp", pair[0])):
        sent, due = (between.get((*ends, last.get(a)), []) for ends in ((a, b, "send"), (b, a, "recv")))
        unlike = (Misfit(a, b, s.numel, r.numel, (s, r)) for s, r in zip(sent, due, strict=False) if s.numel != r.numel)
        of_size += islice(unlike, 1)
        of_number += _numbers(calls, a, b, sent, due, calls.layout.group("pp", a))
    if not (misfitting := tuple(of_size or of_number)):
        return None
    sides = {rank for m in misfitting for rank in (m.sender, m.receiver)}
    senders, step = {m.sender: _unsent(calls, m.sender, m.receiver) for m in misfitting}, misfitting[0].calls[0].step
    changed = {rank for rank in sides if _changed(calls, rank, step, bool(of_size), senders.get(rank))}
    culprits = changed if changed and changed < sides else sides
    group = joint_group(calls.layout, "pp", (m.sender for m in misfitting)).ranks
    return Case(misfitting, tuple(sorted(culprits)), group, bool(of_size))


def _numbers(
    calls: Pairs, a: int, b: int, sent: list[RingRecord], expected: list[RingRecord], stages: Sequence[int]
) -> Iterator[Misfit[RingRecord]]:
    """Yield where one of two ranks waits for a message of a peer that has gone on to a collective of its pipeline.

    Stages meet in a collective at the end of a step, and data-parallel ranks of a stage in its last backward. In
    others of a single stage, such as a tensor-parallel one, the peer may be held up before its message. The
    collective has raised where its other ranks were ended first.
    """
    run, last = calls.evidence.run, calls.records[a][-1]
    beat = run.heartbeats.get(b) if run is not None else None
    if len(sent) + _unsent(calls, a, b) >= len(expected):
        return
    waits = beat is not None and str(beat.region).startswith(_REGIONS) and beat.step == expected[0].step
    at_end = _reduces(calls, a) or len({*last.group.ranks} & {*stages}) > 1
    in_collective = not last.is_p2p and last.state in ("started", "raised")
    if at_end and in_collective and (waits or any(call.state == "started" for call in expected)):
        yield Misfit(a, b, len(sent), len(expected), (sent[-1] if sent else last, expected[-1]))


def _reduces(calls: Pairs, rank: int) -> bool:
    assert calls.layout is not None
    mesh, last = calls.layout, calls.records[rank][-1]
    along = {name for name in ORDER if len({mesh.index(name, member) for member in last.group.ranks}) > 1}
    data = any(name not in MODEL for name in along) and not along & {"tp", "pp"}
    return data and last.op.startswith(("all_reduce", "reduce_scatter"))


def _unsent(calls: Pairs, a: int, b: int) -> int:
    """Return the messages to b that a may still send after its last call: a stage reduces the gradients of its
    parameters in its last backward, and then sends that of its input to the stage before.
    """
    assert calls.layout is not None and calls.evidence.run is not None
    before, after = (calls.layout.index("pp", rank) for rank in (a, b))
    forward = before < after and calls.evidence.run.number("parallel.stages_per_rank", 1) == 1
    return int(_reduces(calls, a) and not forward)


def _changed(calls: Pairs, rank: int, step: int | None, sizes: bool, unsent: int | None) -> bool:
    """Return whether a rank's messages in a step differ in size, or in number, from those in the previous step.

    `unsent` of them may be still to come; None for a rank that waits in the middle of its step.
    """
    records = calls.records[rank]
    now, before = ([r.numel for r in records if r.is_p2p and r.step == s] for s in (step, (step or 0) - 1))
    if sizes:
        return bool(before) and set(now) != set(before)
    whole = records[0].id == 1 or records[0].step != (step or 0) - 1  # Otherwise the ring begins within that step.
    missing = len(before) - len(now)
    return whole and bool(before) and (missing < 0 if unsent is None else missing not in (0, unsent))
