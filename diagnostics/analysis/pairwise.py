"""What ranks send and what their peers expect, pair by pair, from rings: pipelines' messages, splits of all_to_all."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from diagnostics.analysis.layout import Layout, layout
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import RingRecord

_MESSAGES = ("recv ", "send ")  # How regions of messages begin; inside one of them a rank waits for its peer.
Records = Mapping[int, tuple[RingRecord, ...]]  # Rank -> its last calls, oldest first.


@dataclass(frozen=True, slots=True)
class Misfit:
    """Two ranks of which one expects something else than the other sends."""

    sender: int
    receiver: int
    sent: int
    """Rows, elements of a message, or messages of a step."""
    expected: int
    calls: tuple[RingRecord, RingRecord]
    """The sender's, and the receiver's."""


@dataclass(frozen=True, slots=True)
class Case:
    """The earliest misfits, and who brought them about."""

    misfits: tuple[Misfit, ...]
    culprits: tuple[int, ...]
    """All of them when neither side can be called wrong."""
    group: tuple[int, ...]
    shapes: bool = True
    """Of a pipeline: whether messages differ in size rather than in number."""

    @property
    def victims(self) -> tuple[int, ...]:
        """The other ranks of the group."""
        return tuple(rank for rank in self.group if rank not in self.culprits)


@dataclass(frozen=True, slots=True)
class Pairs:
    """What can be held against each other."""

    evidence: Evidence
    layout: Layout | None
    records: Records
    files: Mapping[int, str]
    """Rank -> its ring."""

    def splits(self) -> Case | None:
        """Return the first all_to_all whose splits do not fit."""
        calls: dict[tuple[str, int], dict[int, RingRecord]] = {}
        for rank, records in self.records.items():
            for record in records:
                if record.splits:
                    calls.setdefault((record.group.key, record.seq), {})[rank] = record
        cases = []
        for by_rank in calls.values():
            members = next(iter(by_rank.values())).group.ranks
            tables = {rank: table for rank, call in by_rank.items() if (table := _splits(call, len(members)))}
            pairs = (
                (a, b, tables[a][0][members.index(b)], tables[b][1][members.index(a)]) for a in tables for b in tables
            )
            misfits = [Misfit(a, b, sent, due, (by_rank[a], by_rank[b])) for a, b, sent, due in pairs if sent != due]
            if misfits:
                counts = Counter(rank for m in misfits for rank in {m.sender, m.receiver}).most_common()
                most = {rank for rank, count in counts if count == counts[0][1]}
                culprits = most if 2 * len(most) < len(members) else {rank for rank, _ in counts}
                cases.append(Case(tuple(misfits), tuple(sorted(culprits)), members))
        return min(cases, key=lambda case: case.misfits[0].calls[0].time_s, default=None)

    def messages(self) -> Case | None:
        """Return the pipeline whose neighbours do not exchange the same messages."""
        if self.layout is None or self.layout.degrees["pp"] == 1:
            return None
        ranks = sorted(self.records)
        pairs = [(a, b) for a in ranks for b in self.layout.group("pp", a) if a != b and b in self.records]
        found: list[Misfit] = []
        for a, b in pairs:
            step = self._last(a)
            both = zip(self._between(a, b, "send", step), self._between(b, a, "recv", step), strict=False)
            unlike = (Misfit(a, b, s.numel, r.numel, (s, r)) for s, r in both if s.numel != r.numel)
            found += islice(unlike, 1)
        counted = [] if found else [m for pair in pairs for m in self._numbers(*pair)]
        if not (misfits := tuple(found or counted)):
            return None
        sides = {rank for m in misfits for rank in (m.sender, m.receiver)}
        changed = {rank for rank in sides if self._changed(rank, misfits[0].calls[0].step, bool(found))}
        culprits = changed if changed and changed < sides else sides
        return Case(misfits, tuple(sorted(culprits)), self.layout.group("pp", misfits[0].sender), bool(found))

    def _between(self, rank: int, peer: int, op: str, step: int | None) -> list[RingRecord]:
        """Return the messages of a rank to or from a peer in a step."""
        calls = (record for record in self.records[rank] if record.is_p2p and record.step == step)
        return [record for record in calls if record.root == peer and record.op.removeprefix("i") == op]

    def _last(self, rank: int) -> int | None:
        return max((r.step for r in self.records[rank] if r.is_p2p and r.step is not None), default=None)

    def _numbers(self, a: int, b: int) -> Iterator[Misfit]:
        """Yield where one of two ranks waits for a message of a peer that has gone on to a collective."""
        run, step = self.evidence.run, self._last(a)
        beat = run.heartbeats.get(b) if run is not None else None
        gone = self.records[a][-1]
        waits = beat is not None and beat.step == step and str(beat.region).startswith(_MESSAGES)
        sent, expected = self._between(a, b, "send", step), self._between(b, a, "recv", step)
        if waits and not gone.is_p2p and gone.state == "started" and len(sent) < len(expected):
            yield Misfit(a, b, len(sent), len(expected), (sent[-1] if sent else gone, expected[-1]))

    def _changed(self, rank: int, step: int | None, sizes: bool) -> bool:
        """Whether a rank's messages of a step are of other sizes, or another number, than those of the step before."""
        records = self.records[rank]
        now, before = ([r.numel for r in records if r.is_p2p and r.step == s] for s in (step, (step or 0) - 1))
        if sizes:
            return bool(before) and set(now) != set(before)
        whole = records[0].id == 1 or records[0].step != (step or 0) - 1  # Else the ring begins within that step.
        return whole and bool(before) and len(now) != len(before)


def pairs(evidence: Evidence) -> Pairs:
    """Read all rings; one that is damaged is left out, which the coverage says."""
    records: dict[int, tuple[RingRecord, ...]] = {}
    files: dict[int, str] = {}
    for file in evidence.handles(RingFile):
        try:
            ring = file.read()
        except (OSError, ValueError):
            continue
        if ring.records and (evidence.run is None or ring.attempt == evidence.run.attempt):
            records[ring.rank], files[ring.rank] = ring.records, file.file
    return Pairs(evidence, layout(evidence), records, files)


def _splits(call: RingRecord, ranks: int) -> tuple[list[int], list[int]] | None:
    """Return (rows sent to each, rows expected of each), where the record tells them."""
    try:
        sides, sizes = json.loads(call.splits), [json.loads(call.input_sizes), json.loads(call.output_sizes)]
        tables = [side or [size[0][0] // ranks] * ranks for side, size in zip(sides, sizes, strict=True)]
    except (ValueError, TypeError, IndexError, RecursionError):
        return None
    whole = all(len(table) == ranks and all(isinstance(rows, int) for rows in table) for table in tables)
    return (tables[0], tables[1]) if whole and len(tables) == 2 else None
