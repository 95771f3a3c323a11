"""`memory.activations`: what forward keeps for backward is most of a peak that does not fit."""

from msgspec import Struct

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.categories import ACTIVATIONS, LOGITS
from diagnostics.analysis.memory.job import JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import EvidenceItem, Finding, Text
from diagnostics.contract.formatting import Bytes, Phrase

_TEXTS = Texts(__file__)
TIGHT = 0.9
"""Of the device: a peak beyond this is as good as out of memory."""
DOMINANT = 0.5
"""Of the peak."""
MANY_LOGITS = 0.25
"""Of the activations: logits beyond this have remedies of their own."""


class Activations(Struct, frozen=True):
    """Activations at the peak of the rank with the highest."""

    rank: int
    activation_bytes: int
    """Logits included."""
    logits_bytes: int
    peak_bytes: int
    region: str
    """The annotation that was open at the peak."""
    micro_batch: int | None
    """Of dtk."""
    checkpoints: bool | None
    """Whether activations are checkpointed; None = not a run of dtk."""
    strategy: str

    @property
    def measured(self) -> Phrase:
        """`activations 6 GiB = 75% of the peak of 8 GiB`"""
        return _TEXTS.phrase("measured", facts=self, part=f"{self.activation_bytes / self.peak_bytes:.0%}")

    def text(self, finding: Finding) -> Text:
        """Say how much they are and how to keep fewer."""
        work, has_logits = self.activation_bytes, self.logits_bytes > MANY_LOGITS * self.activation_bytes
        said = ["with_logits" if has_logits else "usual"]
        said += ["checkpoint"] if self.checkpoints is None else [] if self.checkpoints else ["override"]
        said += ["micro_batch"] if self.micro_batch is not None and self.micro_batch > 1 else []
        return _TEXTS(
            finding,
            [*said, "chunked_loss"] if has_logits and not self.strategy else said,
            facts=self,
            at="" if finding.step is None else _TEXTS.phrase("at", step=finding.step, region=self.region),
            saves=Bytes(max(0, work - self.logits_bytes)),
            half=Bytes(work / 2),
            half_batch=(self.micro_batch or 0) // 2,
        )


def decide(job: JobMemory) -> Finding:
    """Take the highest peak apart, where memory ran out or is about to."""
    peaks = [(rank, peak) for rank in job.ranks.values() if (peak := categories.peak(job, rank)) is not None]
    if not peaks:
        return shared.not_recorded(job, "allocations")
    rank, peak = max(peaks, key=lambda item: item[1].total_bytes)
    curve, run, capacity = rank.curve, job.evidence.run, job.capacity()
    logits = peak.categories.get(LOGITS, 0)
    work = peak.categories.get(ACTIVATIONS, 0) + logits
    micro = run.get("train.micro_batch_size") if run is not None else None
    facts = Activations(
        rank.rank,
        work,
        logits,
        peak.total_bytes,
        curve.peak_region if curve is not None else "",
        micro if isinstance(micro, int) else None,
        bool(run.get("train.activation_checkpoint_every")) if run is not None else None,
        job.size.strategy,
    )
    tight = job.out_of_memory or (capacity is not None and peak.total_bytes >= TIGHT * capacity.size_bytes)
    if not tight or work < DOMINANT * peak.total_bytes:
        few = work < DOMINANT * peak.total_bytes
        return _TEXTS.ruled_out("few" if few else "fits", measured=facts.measured)
    return shared.confirmed(
        job,
        facts,
        confidence=0.85,
        ranks=(rank.rank for rank in job.ranks.values() if rank.curve is not None),
        step=curve.peak_step if curve is not None else None,
        cost_bytes=work,
        evidence=(EvidenceItem("trace", rank.trace_file, facts.measured),),
    )


CAUSE = declared(__file__, read, decide)
