"""The report on a simulated job that stands: by the detectors of `dtk diagnose`, told where the ranks part.

The detectors see what a real run would have left. Beyond that a simulation knows what every rank would have called
later (`parting`); this module hands it on in their terms.
"""

from collections.abc import Mapping
from dataclasses import replace

from diagnostics.analysis.divergence.difference import Difference
from diagnostics.analysis.divergence.vote import Vote
from diagnostics.causes.registry import collect
from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang import HangDetector
from diagnostics.detectors.hang.disagree.words import Split, Transfer
from diagnostics.diagnose import conclude, run_detector
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Evidence
from diagnostics.report.model import Report
from diagnostics.tree.built_in import built_in
from dtk.preflight.calls import Record
from dtk.preflight.evidence import frame_of, whole_history
from dtk.preflight.match import Misfit
from dtk.preflight.parting import Parting

CONFIDENCE = 0.98
"""Of what the whole lists of calls say; what is left is that only so many steps were simulated."""


def explain(evidence: Evidence, records: Mapping[int, Record], known: Parting | Misfit | None, source: str) -> Report:
    """The report on ranks that stand.

    Args:
        evidence: the stuck state; see `dtk.preflight.evidence`.
        records: all ranks.
        known: where they part, or the calls that do not fit, if that explains it.
        source: how the report calls the job.
    """
    split = _unfit(records, known) if isinstance(known, Misfit) else _split(records, known) if known else None
    registry = collect()
    evidence.problems.extend(registry.problems)
    findings: list[Finding] = []
    measures: dict[str, object] = {}
    for detector in registry.detectors:
        if isinstance(detector, HangDetector) and split is not None:
            detector = HangDetector(lambda _: split)
        detection = run_detector(detector, evidence)
        findings += detection.findings
        measures.update(detection.measures)
    return conclude(evidence, built_in(), findings, measures, source)


def _split(records: Mapping[int, Record], parting: Parting) -> Split:
    """The parting in the detector's words."""
    mine = whole_history(records[parting.usual_rank])
    theirs = whole_history(records[parting.odd_rank])
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
        whole=True,
        ended=parting.over,
    )


def _unfit(records: Mapping[int, Record], misfit: Misfit) -> Split:
    """Calls whose lengths do not fit, in the detector's words."""
    sent = whole_history(records[misfit.sender])[misfit.sent]
    taken = whole_history(records[misfit.receiver])[misfit.taken]
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
        transfer=Transfer(misfit.sender, misfit.sent_bytes, misfit.receiver, misfit.taken_bytes),
    )


def _at(call: Call, site: str) -> Call:
    """The call as made from that line."""
    return replace(call, stack=(frame_of(site),))
