"""Activations at the peak: confirmed only where memory ran out or is about to."""

from msgspec.structs import replace

from diagnostics.analysis.memory.curve import Allocation, Curve
from diagnostics.analysis.memory.job import JobMemory
from diagnostics.causes.memory.activations import decide
from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.analysis.memory.test_model_size import paper
from tests.unit.diagnostics.causes.memory.test_model_states import out_of_memory

GIB = 1 << 30


def with_peak(job: JobMemory, activations: int, rest: int) -> JobMemory:
    curve = Curve(1, 0, peak_bytes=activations + rest, peak_us=2.0, peak_step=5, peak_region="mlp")
    curve.at_peak = [Allocation(activations, 1.0, 5, "forward", "mlp"), Allocation(rest, 1.0, 5, "step", "step")]
    job.ranks[3].curve = curve
    return job


def test_activations_are_a_cause_only_when_memory_ran_out(tmp_path):
    full = with_peak(out_of_memory(tmp_path, paper("zero3", 64)), 30 * GIB, 6 * GIB)
    finding = decide(full)
    assert (finding.status, finding.ranks, finding.step) == ("confirmed", (3,), 5)
    text = text_of(finding)
    assert "mlp" in text.summary
    assert text.remedies[0].change.startswith("checkpoint each block")
    assert finding.cost.value == 30 * GIB
    few = decide(with_peak(full, 6 * GIB, 30 * GIB))
    assert (few.status, text_of(few).summary) == ("ruled_out", "Activations do not make up most of the peak.")
    full.ran_out = [replace(record, requested_bytes=37 * GIB) for record in full.ran_out]
    alone = decide(with_peak(full, 30 * GIB, 6 * GIB))
    assert (alone.status, text_of(alone).summary[:32]) == ("ruled_out", "One request of 37 GiB was refuse")
    full.ran_out = []
    fits = decide(with_peak(full, 30 * GIB, 6 * GIB))
    assert (fits.status, text_of(fits).summary) == ("ruled_out", "Activations are most of the peak, but it fits.")


def test_logits_are_named_with_a_remedy_of_their_own(tmp_path):
    job = out_of_memory(tmp_path, paper("", 64))
    job.size = replace(job.size, logits_bytes=20 * GIB)
    full = with_peak(job, 20 * GIB, GIB)
    text = text_of(decide(full))
    assert "including 20 GiB of logits" in text.summary
    assert "loss in chunks" in text.remedies[-1].change
