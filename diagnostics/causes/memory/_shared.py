"""Shared by the memory causes: the confirmed finding, findings about missing records, phrases."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from diagnostics.analysis.memory.gathers import Gather
from diagnostics.analysis.memory.job import PREDICTED_RANKS, JobMemory, Prediction, named
from diagnostics.analysis.memory.over_time import NOWHERE
from diagnostics.causes.declared import Texts
from diagnostics.contract.findings import Cost, EvidenceItem, Facts, Finding, Where
from diagnostics.contract.formatting import UNNAMED, Phrase, bytes_text, file_name, ranks_spoken, region_text
from diagnostics.evidence.model import Frame

ALMOST_ALL = 0.9
"""Share of all parameters from which a gather counts as the whole model; embeddings in a root unit are less."""
SOME_MORE = 1.3  # Multiple of all parameters that a gather of the whole model reaches by padding.
LEAST_SHARE = 0.02  # Share of the peak below which a cost is not reported.
CERTAIN_STEPS = 3
"""Number of profiled steps from which what one rank retains is proof; with two, all ranks must show the same: gloo's
threads free gathered outputs without an event."""
UNITS_IN_USE = 2  # Number of units that are gathered at the same time with prefetch: the current one and the next.
TEXTS = Texts(__file__)
Figures = dict[str, Any]  # Name of a placeholder or of a finding's field -> its value.


def not_recorded(job: JobMemory, what: str, **figures: object) -> Finding:
    """Return undecided: the evidence lacks `what`, which is the name of a row in `_shared.yaml`."""
    return TEXTS.undecided([what, f"{what}_of_dtk" if job.evidence.is_dtk else f"{what}_elsewhere"], **figures)


def confirmed(job: JobMemory, facts: Facts, *, ranks: Iterable[int], cost_bytes: float, **more: Any) -> Finding:
    """Return a confirmed finding; without source lines it has those at which its ranks ran out of memory."""
    finding = Finding(status="confirmed", facts=facts, ranks=named(ranks := tuple(ranks)), **more)
    places = [place for rank, at in job.ran_out_at(ranks) for place in where(at, False, rank, TEXTS.phrase("out"))]
    return replace(finding, where=finding.where or tuple(places), cost=Cost(cost_bytes, "bytes"))


def gather_figures(job: JobMemory, call: Gather, made_bytes: int, cost_bytes: int) -> Figures:
    """Return the figures that texts about a gather have, whose output has `made_bytes` and which costs `cost_bytes`."""
    peak, more = job.peak(), on_more_ranks(job.predicted(fixed_bytes=cost_bytes))
    at, saves = spot(call.site, call.at_head), of_peak(cost_bytes, peak)
    return {"call": call, "at": at, "share": share(made_bytes, peak), "on_more_ranks": more, "saves": saves}


def of_gather(job: JobMemory, call: Gather, facts: Facts, seen: Phrase, ranks: tuple[int, ...], **more: Any) -> Finding:
    """Return the confirmed finding about a gather, at its line and in its step; `more` are cost and confidence."""
    places = where(call.site, call.at_head, ranks[0] if ranks else None, TEXTS.phrase("call", call=call))
    evidence = (EvidenceItem(call.evidence, call.file, seen), *peak_items(job))
    return confirmed(job, facts, ranks=ranks, step=call.step, where=places, evidence=evidence, **more)


def peak_items(job: JobMemory) -> tuple[EvidenceItem, ...]:
    """Return the location of the highest recorded peak as evidence."""
    rank = job.highest()
    if rank is None or rank.curve is None:
        return ()
    step = "" if rank.curve.peak_step is None else f" in step {rank.curve.peak_step}"
    region = f", {region_text(rank.curve.peak_region)}" if rank.curve.peak_region not in NOWHERE else ""
    detail = TEXTS.phrase("peak", rank=rank.rank, peak=job.curve_peak(rank), step=step, region=region)
    return (EvidenceItem("trace", rank.trace_file, detail),)


def where(site: Frame | None, at_head: bool, rank: int | None, does: str | Phrase) -> tuple[Where, ...]:
    """Return the line as a tuple; its text states whether it is only the first line of the function."""
    if site is None:
        return ()
    if at_head:
        does = TEXTS.phrase("in_script" if site.function == "<module>" else "at_head", does=does)
    return (Where(rank if rank is not None and rank > UNNAMED else None, site.file, site.line, site.function, does),)


def spot(site: Frame | None, at_head: bool) -> str:
    """Return ` at sharded.py:54`, or ` in log_norms (sharded.py:50)` if only the function's first line is known."""
    if site is None:
        return ""
    name = file_name(site.file)
    if not at_head:
        return f" at {name}:{site.line}"
    return f" in {name}" if site.function == "<module>" else f" in {site.function} ({name}:{site.line})"


def share(part_bytes: float, peak_bytes: int | None) -> Phrase | str:
    """Return ` (22% of the peak of 15.1 MiB)`; empty if the peak is not known."""
    if not peak_bytes:
        return ""
    return TEXTS.phrase("share", part=f"{min(part_bytes / peak_bytes, 9.99):.0%}", peak=peak_bytes)


def of_peak(saved_bytes: float, peak_bytes: int | None) -> str:
    """Return `3.1 GiB of 14.8 GiB`."""
    return bytes_text(saved_bytes) + (f" of {bytes_text(peak_bytes)}" if peak_bytes else "")


def rank_names(ranks: Iterable[int]) -> str:
    """Return `rank 2` or `ranks 0-3`; `every rank` if there are no ranks."""
    numbers = set(ranks)
    return ranks_spoken(numbers) if numbers else "every rank"


def on_more_ranks(prediction: Prediction | None, before: str = "; ") -> Phrase | str:
    """Return `; on 64 ranks a rank would need 120 MiB, without it 40 MiB`; empty without a prediction."""
    if prediction is None:
        return ""
    return TEXTS.phrase("on_more_ranks", before=before, ranks=PREDICTED_RANKS, prediction=prediction)
