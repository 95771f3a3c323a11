"""The report on a simulated job that stands: by the detectors of `dtk diagnose`, told where the ranks part.

The detectors see what a real run would have left. Beyond that a simulation knows what every rank would have called
later (`parting`); this module hands it on in their words.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from diagnostics.analysis.divergence.difference import Difference
from diagnostics.analysis.divergence.vote import Vote
from diagnostics.causes.registry import collect
from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang import HangDetector, say
from diagnostics.detectors.hang.disagree.words import Split
from diagnostics.diagnose import conclude, run_detector
from diagnostics.evidence.calls import Call
from diagnostics.evidence.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Frame
from diagnostics.evidence.ring.calls_file import RingFile as RingReader
from diagnostics.report.model import Report
from diagnostics.tree.built_in import built_in
from dtk.preflight.calls import Record
from dtk.preflight.match import Misfit, Standing
from dtk.preflight.parting import Parting
from dtk.preflight.reworded import worded
from dtk.preflight.ring_file import RingFile

CONFIDENCE = 0.98
"""Of what the whole lists of calls say; what is left is that only so many steps were simulated."""


def explain(folder: Path, records: Mapping[int, Record], known: Parting | Misfit | None, source: str) -> Report:
    """The report on what stands in `folder`.

    Args:
        folder: the stuck state as files; see `evidence.write`.
        records: all ranks.
        known: where they part, or the calls that do not fit, if that explains it.
        source: how the report calls the job.
    """
    evidence = gather(folder, Limits(), None)
    registry = collect()
    evidence.problems.extend(registry.problems)
    findings: list[Finding] = []
    measures: dict[str, object] = {}
    for detector in registry.detectors:
        hangs = isinstance(detector, HangDetector)
        if hangs and isinstance(known, Misfit):
            detector = _told(_unfit(folder, records, known))
        elif hangs and isinstance(known, Parting):
            detector = _told(_split(folder, records, known))
        detection = run_detector(detector, evidence)
        findings += [worded(one, known) for one in detection.findings] if hangs else detection.findings
        measures.update(detection.measures)
    return conclude(evidence, built_in(), findings, measures, source)


def _told(split: Split) -> HangDetector:
    """The detector of hangs that need not look for the divergence."""
    return HangDetector(lambda _: split)


def _split(folder: Path, records: Mapping[int, Record], parting: Parting) -> Split:
    """The parting in the detector's words."""
    mine = _calls(folder, records[parting.usual_rank])
    theirs = _calls(folder, records[parting.odd_rank])
    usual, odd = _at(mine[parting.usual], parting.usual_site), _at(theirs[parting.odd], parting.odd_site)
    shown = odd if parting.kind in ("extra", "more") else usual
    listed = theirs if parting.calls[:1] == (parting.odd,) and shown is odd else mine
    left = parting.kind in ("extra", "skipped", "bucket")
    calls = (shown, *(listed[number] for number in parting.calls[1:])) if left else (odd, usual)
    difference = Difference(parting.kind, CONFIDENCE, calls, parting.why, aligned=True)
    key = usual.key if parting.kind in ("skipped", "bucket") else odd.key
    others = tuple(rank for rank in records[parting.odd_rank].groups[0].ranks if rank not in parting.ranks)
    if parting.tie:
        others = (parting.usual_rank,)
    side = (parting.odd_rank,) if parting.tie else parting.ranks
    vote = Vote(key, odd.seq, (others, side), (), ())
    return Split(
        vote=vote,
        usual=usual,
        odd=odd,
        difference=difference,
        usual_rank=parting.usual_rank,
        odd_rank=parting.odd_rank,
        blamed=parting.ranks,
        tie=parting.tie,
        time_s=1.0,
        said=_said(parting, odd, usual, others) if not left else "",
    )


def _unfit(folder: Path, records: Mapping[int, Record], misfit: Misfit) -> Split:
    """Calls whose lengths do not fit, in the detector's words."""
    sent = _calls(folder, records[misfit.sender])[misfit.sent]
    taken = _calls(folder, records[misfit.receiver])[misfit.taken]
    why = f"one rank sends {misfit.sent_bytes} bytes, the other expects {misfit.taken_bytes}"
    return Split(
        vote=Vote(sent.key, sent.seq, ((misfit.receiver, misfit.sender),), (), ()),
        usual=taken,
        odd=sent,
        difference=Difference("signature", CONFIDENCE, (taken, sent), why),
        usual_rank=misfit.receiver,
        odd_rank=misfit.sender,
        blamed=tuple(sorted((misfit.receiver, misfit.sender))),
        tie=False,
        time_s=1.0,
        said=f"Rank {misfit.sender} sends {misfit.sent_bytes} bytes to rank {misfit.receiver} in {say.call(sent)}; "
        f"rank {misfit.receiver} expects {misfit.taken_bytes} bytes of it in {say.call(taken)}.",
    )


def _said(parting: Parting, odd: Call, usual: Call, others: tuple[int, ...]) -> str:
    """What happened, for ranks that run another number of iterations."""
    ranks = say.ranks(parting.ranks)
    meets = f"{say.call(odd)} meets {say.call(usual)}."
    if parting.over:
        meets = f"{say.call(odd)} is the last call on one side, the other goes on to {say.call(usual)}."
    return (
        f"{say.sentence(ranks)} {say.verb(parting.ranks, 'goes', 'go')} another number of times through the loop than "
        f"{say.ranks(others)} ({parting.why}): {meets}"
    )


def _calls(folder: Path, record: Record) -> list[Call]:
    """All calls of a rank, by number."""
    issued = sum(event >= 0 for event in record.program.steps())
    path = folder / f"whole_{record.rank}"
    path.write_bytes(RingFile(record, 1, Standing(issued, None), issued).data())
    try:
        (dump,) = RingReader(path, path.name, record.rank, Limits()).load()
    finally:
        path.unlink()
    return dump.calls


def _at(call: Call, site: str) -> Call:
    """The call as made from that line."""
    place, _, function = site.partition("\t")
    file, _, line = place.rpartition(":")
    return replace(call, stack=(Frame(file, int(line or 0), function.rpartition(".")[2]),))
