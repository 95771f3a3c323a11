"""Stages of a pipeline disagree about the number of micro-batches of a step, or the size of messages."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from diagnostics.analysis.layout import joint_group
from diagnostics.analysis.pairwise import Case, Misfit, Pairs, pairs
from diagnostics.analysis.stall.circular import PointToPoint
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang.all_to_all_splits import places, seen
from diagnostics.causes.hang.p2p_cycle import figures, finding
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import ASSUMED, SEEN, EvidenceItem, Finding, confirmed
from diagnostics.contract.mesh import MODEL, ORDER
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.ring.format import RingRecord

_TEXTS = Texts(__file__)
_REGIONS = ("recv ", "send ")  # Prefixes of message regions, inside which a rank waits for its peer.
_LOSS = {name: re.compile(pattern) for name, pattern in table_beside(__file__)["loss"].items()}
"""The table documents what each pattern matches."""


def decide(stall: Stall) -> Finding:
    """Decide from waits in torch's schedules, from the loss of one, or from the messages of each stage's last step."""
    for wait in stall.circular:
        if isinstance(wait, PointToPoint) and wait.scheduled:
            return finding(stall, wait, _TEXTS.facts(**figures(wait) | {"said": "schedules"}))
    if (at_loss := _at_loss(stall)) is not None:
        return at_loss
    calls = pairs(stall.job.evidence)
    layout, case = calls.layout, _messages(calls)
    if case is None:
        if layout is not None and layout.pp == 1:
            return _TEXTS.ruled_out("no_pipeline")
        if layout is not None and len(calls.records) > 1:
            return _TEXTS.ruled_out("fit")
        if calls.records and not any(record.is_p2p for records in calls.records.values() for record in records):
            return _TEXTS.ruled_out("no_message")
        return _TEXTS.undecided(missing=_parts.recording(calls.evidence))
    assert layout is not None
    first, what = case.misfits[0], "sizes" if case.shapes else "counts"
    stages = [(layout.index("pp", rank), rank) for rank in (first.sender, first.receiver)]
    sender, receiver = (_TEXTS.phrase("stage", stage=stage, rank=rank) for stage, rank in stages)
    row = f"{what}_tie" if {first.sender, first.receiver} <= {*case.culprits} else what
    return confirmed(
        facts=_TEXTS.facts(row, first=first, sender=sender, receiver=receiver),
        confidence=SEEN,
        ranks=case.culprits,
        victims=case.victims,
        group=joint_group(layout, "pp", case.group),
        step=case.misfits[0].calls[1].step,
        where=places(case),
        evidence=seen(calls, case, "elements" if case.shapes else "messages"),
    )


def _at_loss(stall: Stall) -> Finding | None:
    """Return the finding about a last stage whose targets and whose predecessor's outputs are of different batches."""
    for rank, end in sorted(stall.job.endings.items()):
        sizes = _LOSS["sizes"].search(end.message) if end.kind == "raised" else None
        if sizes is not None and any(_LOSS["frames"].search(f"{at.file}:{at.function}") for at in end.frames):
            others = {other for other, ended in stall.job.endings.items() if ended.victim}
            first, second = (int(size) for size in sizes.groups() if size)
            return confirmed(
                facts=_TEXTS.facts("loss", rank=rank, first=first, second=second),
                confidence=ASSUMED,  # A loss with a mistake of its own raises the same.
                victims=tuple(sorted({rank, *others})),
                where=_parts.where(rank, own_line(end.frames), end.summary),
                evidence=(EvidenceItem(end.record.kind, end.record.file, end.summary, end.record.line),),
            )
    return None


def _messages(calls: Pairs) -> Case | None:
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


CAUSE = declared(__file__, explain, decide)
