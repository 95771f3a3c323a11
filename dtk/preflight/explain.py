"""The report on a simulated job that stands: by the detectors of `dtk diagnose`, told where the ranks part.

The detectors see what a real run would have left. Beyond that a simulation knows what every rank would have called
later (`parting`); this module hands it on in their terms.
"""

from collections.abc import Mapping
from dataclasses import replace

from diagnostics.analysis.divergence import Deviation, Divergence, Explanation, Place, Vote, support
from diagnostics.causes.registry import collect
from diagnostics.contract.findings import Finding
from diagnostics.detectors.hang import HangDetector
from diagnostics.diagnose import conclude, run_detector
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Evidence
from diagnostics.report.model import Report
from diagnostics.tree.built_in import built_in
from dtk.preflight.calls import Record
from dtk.preflight.evidence import frame_of, whole_history
from dtk.preflight.match import Misfit
from dtk.preflight.parting import Parting

_EDITS: dict[str, tuple[Deviation, Place]] = {
    "extra": ("insert", "within"),
    "skipped": ("drop", "within"),
    "more": ("insert", "round"),
    "fewer": ("drop", "round"),
    "bucket": ("drop", "backward"),
}


def explain(evidence: Evidence, records: Mapping[int, Record], known: Parting | Misfit | None, source: str) -> Report:
    """The report on ranks that stand.

    Args:
        evidence: the stuck state; see `dtk.preflight.evidence`.
        records: all ranks.
        known: where they part, or the calls that do not fit, if that explains it.
        source: how the report calls the job.
    """
    known_divergence = None
    if known is not None:
        known_divergence = _unfit(records, known) if isinstance(known, Misfit) else _divergence(records, known)
    registry = collect()
    evidence.problems.extend(registry.problems)
    findings: list[Finding] = []
    measures: dict[str, object] = {}
    for detector in registry.detectors:
        if isinstance(detector, HangDetector) and known_divergence is not None:
            detector = HangDetector(lambda _: known_divergence)
        detection = run_detector(detector, evidence)
        findings += detection.findings
        measures.update(detection.measures)
    return conclude(evidence, built_in(), findings, measures, source)


def _divergence(records: Mapping[int, Record], parting: Parting) -> Divergence:
    """Return the parting as the divergence that the detector reports."""
    mine = whole_history(records[parting.usual_rank])
    theirs = whole_history(records[parting.odd_rank])
    usual, odd = _at(mine[parting.usual], parting.usual_site), _at(theirs[parting.odd], parting.odd_site)
    shown = odd if parting.kind in ("extra", "more") else usual
    listed = theirs if parting.calls[:1] == (parting.odd,) and shown is odd else mine
    left = parting.kind in ("extra", "skipped", "bucket")
    calls = (shown, *(listed[number] for number in parting.calls[1:])) if left else (usual, odd)
    key = usual.key if parting.kind in ("skipped", "bucket") else odd.key
    others = tuple(rank for rank in records[parting.odd_rank].groups[0].ranks if rank not in parting.ranks)
    if parting.tie:
        others = (parting.usual_rank,)
    side = (parting.odd_rank,) if parting.tie else parting.ranks
    deviation, place = _EDITS[parting.kind]
    return Divergence(
        vote=Vote(key, odd.seq, (others, side)),
        majority_rank=parting.usual_rank,
        minority_rank=parting.odd_rank,
        majority=usual,
        minority=odd,
        explanation=Explanation(deviation, place, calls, (support("whole programs"),), aligned=True),
        culprits=parting.ranks,
        tie=parting.tie,
        whole=True,
        ended=parting.over,
    )


def _unfit(records: Mapping[int, Record], misfit: Misfit) -> Divergence:
    """Return calls whose lengths do not fit as a divergence of the two ranks."""
    sent = whole_history(records[misfit.sender])[misfit.sent]
    taken = whole_history(records[misfit.receiver])[misfit.taken]
    return Divergence(
        vote=Vote(sent.key, sent.seq, ((misfit.receiver, misfit.sender),)),
        majority_rank=misfit.receiver,
        minority_rank=misfit.sender,
        majority=taken,
        minority=sent,
        explanation=Explanation("change", "within", (taken, sent), (support("whole programs"),)),
        culprits=tuple(sorted((misfit.receiver, misfit.sender))),
        tie=False,
        payload=(misfit.sent_bytes, misfit.taken_bytes),
    )


def _at(call: Call, site: str) -> Call:
    """The call as made from that line."""
    return replace(call, stack=(frame_of(site),))
