"""`memory.full_gather`: one call brings (almost) all parameters to every rank."""

from dataclasses import dataclass

from diagnostics.analysis.memory.gathers import Gather
from diagnostics.analysis.memory.job import JobMemory, Prediction, RankMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.analysis.memory.model_size import FROM_UNITS
from diagnostics.causes.memory import _examples
from diagnostics.causes.memory._shared import (
    ALMOST_ALL,
    LEAST_SHARE,
    SOME_MORE,
    UNITS_IN_USE,
    Absent,
    NotRecorded,
    call_site,
    confirmed,
    of_peak,
    on_more_ranks,
    percent,
    ruled_out,
    share,
    spot,
    undecided,
)
from diagnostics.contract.causes import Cause, Example
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text
from diagnostics.contract.formatting import bytes_text

ID = "memory.full_gather"
LEAST_UNWEIGHED_BYTES = 1 << 20
"""Smaller gathers are not reported where the peak is not known."""
LARGE_ROOT = 0.3
"""Of all parameters: a root unit beyond this is worth a hint."""


@dataclass(frozen=True, slots=True)
class WholeGather:
    """One call that gathers the whole model."""

    call: Gather
    whole_bytes: int
    by_units: bool
    """Only the units tell the size of the model."""
    saved_bytes: int
    peak_bytes: int | None
    prediction: Prediction | None
    is_dtk: bool

    def text(self, finding: Finding) -> Text:
        """Say who gathers how much, and how to gather less."""
        call, at = self.call, spot(self.call.site, self.call.at_head)
        part, gathered = percent(call.full_bytes / self.whole_bytes), bytes_text(call.full_bytes)
        what = f"gathers {part} of all {'sharded ' if self.by_units else ''}parameters in one all_gather of {gathered}"
        saves = of_peak(self.saved_bytes, self.peak_bytes)
        if call.kind == "user":
            what = f"The code{at} {what}"
            change = f"do not gather all parameters{at}: reduce each rank's shard (a norm, a hash), combine the results"
            remedy = Remedy("code", change, "a shard is 1/N of the parameters, the gathered copy all of them", saves)
        else:
            what = f"One sharded unit {what}: the model is wrapped only as a whole"
            change = "call fully_shard on each block (and on embeddings and head) before the whole model"
            remedy = Remedy("code", change, "each block is gathered when it is used and freed after it", saves)
            if self.is_dtk:
                change = "strategy.blocks_per_unit=1"
                remedy = Remedy("override", change, "each block is gathered when it is used", saves)
        holds = f"so every rank holds the whole model{share(call.full_bytes, self.peak_bytes)}"
        return Text(
            summary=f"{what}, {holds}{on_more_ranks(self.prediction)}.",
            measured=f"largest gather {gathered} = {part} of the parameters",
            remedies=(remedy,),
        )


@dataclass(frozen=True, slots=True)
class PartGather:
    """The largest gather of parameters, which is no reason for concern."""

    call: Gather
    whole_bytes: int
    is_least: bool = False
    """All parameters together are at least so large."""

    def text(self, finding: Finding) -> Text:
        """Say how small it is."""
        part = self.call.full_bytes / self.whole_bytes
        summary = "No gather brings the whole model." if part < ALMOST_ALL else "All parameters together are small."
        if LARGE_ROOT < part < ALMOST_ALL and not self.call.unit and not self.is_least:
            summary += " The root unit (embeddings, head) is large: units of their own for these would make it smaller."
        all_of = f"= {percent(part)} of the parameters"
        if self.is_least:
            all_of = f"of units of at least {bytes_text(self.whole_bytes)}"
        return Text(summary=summary, measured=f"largest gather {bytes_text(self.call.full_bytes)} {all_of}")


@dataclass(frozen=True, slots=True)
class UnknownWhole:
    """Gathers of a model whose size is not known."""

    call: Gather | None
    """The largest."""

    def text(self, finding: Finding) -> Text:
        """Say why it is open."""
        summary = "There are gathers, but the size of the whole model is not known."
        if self.call is not None and self.call.kind == "unit":
            summary = f"Gathers of {bytes_text(self.call.full_bytes)} are of one unit that is used several times in a "
            summary += "step, or of several units of equal size: the recording does not tell which."
        return Text(
            summary=summary,
            missing="the size of the model: record=full, or a profiler trace with profile_memory=True, "
            "record_shapes=True",
        )


def decide(job: JobMemory) -> list[Finding]:
    """Compare the largest gather of parameters with the size of the whole model."""
    whole, peak = job.size.gather_bytes, job.peak()
    gathers = [(call, rank.rank) for rank in job.ranks.values() for call in _parameter_gathers(job, rank)]
    largest = max((call for call, _ in gathers), key=lambda call: call.full_bytes, default=None)
    if whole and largest is not None and largest.full_bytes >= ALMOST_ALL * whole:
        if largest.full_bytes < (LEAST_SHARE * peak if peak else LEAST_UNWEIGHED_BYTES):
            return ruled_out(ID, PartGather(largest, whole))
        alike = [(call, rank) for call, rank in gathers if call.full_bytes == largest.full_bytes]
        call = next((call for call, _ in alike if call.site is not None), largest)
        ranks = job.ranks_of((rank for _, rank in alike), call.ranks)
        saved, by_units = _saved(job, call), job.size.source == FROM_UNITS
        item = EvidenceItem(call.evidence, call.file, f"all_gather of {bytes_text(call.full_bytes)}")
        return confirmed(
            ID,
            job,
            WholeGather(call, whole, by_units, saved, peak, job.predicted(fixed_bytes=saved), job.is_dtk),
            confidence=0.9 if by_units else 0.97,
            ranks=ranks,
            step=call.step,
            where=call_site(call, ranks),
            cost_bytes=saved,
            evidence=(item, *job.peak_items()),
        )
    if largest is not None and whole:
        return ruled_out(ID, PartGather(largest, whole))
    if job.size.shards == 1:
        return ruled_out(ID, Absent("sharding", job.size.strategy))
    if largest is not None and largest.full_bytes < ALMOST_ALL * job.least_bytes():
        return ruled_out(ID, PartGather(largest, job.least_bytes(), is_least=True))
    traffic = [one for rank in job.ranks.values() for one in (rank.trace, rank.flight, rank.ring) if one is not None]
    if any(one.gathers for one in traffic):
        return undecided(ID, UnknownWhole(largest))
    if any(rank.trace or rank.flight for rank in job.ranks.values()):
        return ruled_out(ID, Absent("gather"))
    return undecided(ID, NotRecorded("collectives", job.is_dtk))


def _parameter_gathers(job: JobMemory, rank: RankMemory) -> list[Gather]:
    """Units' gathers, and under sharding those calls of the user's that are as large as a whole model."""
    calls, whole = rank.unit_gathers(job.is_sharded), job.size.gather_bytes
    if whole and job.is_sharded:
        users = [call for call in rank.user_gathers() if call.kind == "user" and call.full_bytes <= SOME_MORE * whole]
        calls = [*calls, *([call for call in users if call.site is not None] or users)]
    return calls


def _saved(job: JobMemory, call: Gather) -> int:
    """Bytes that wrapping each block saves: all but the root unit and two blocks; an extra gather saves itself."""
    run, block = job.evidence.run, job.size.block_bytes
    layers = run.get("model.layers") if run is not None else None
    if call.kind != "user" and block and isinstance(layers, int):
        return max(0, (layers - UNITS_IN_USE) * block)
    return call.full_bytes


CAUSE = Cause(
    id=ID,
    title="one unit gathers almost all parameters",
    outcome="at_risk",
    branch="memory.gathers",
    facts=read,
    decide=decide,
    decided_from="sizes of all_gathers, plan, timeline",
    remedy="wrap blocks, not only the root: strategy.blocks_per_unit=1",
    example=Example(_examples.root_unit, ranks=(0, 1)),
    source="FSDP paper (arXiv 2304.11277): the peak is the shards plus the largest units gathered at once",
)
