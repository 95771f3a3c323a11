"""What a rank's memory consists of at its peak and over time."""

import pytest

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.categories import Peak, peak, shared_out, sweep
from diagnostics.analysis.memory.curve import build
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.model_size import ModelSize, States
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.memory.levels import AT, KINDS, RESERVED, total
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.analysis.memory.marks import CPU, GPU, MIB, Recording, training

STATES = States(30 * MIB, 30 * MIB, 60 * MIB)


def at_peak(recording: Recording, size: ModelSize | None = None, **marked: bool) -> Peak | None:
    curve = build(recording.marks)
    assert curve is not None
    for name, value in marked.items():
        setattr(curve.at_peak[-1], name, value)
    rank = RankMemory(0, curve=curve)
    return peak(JobMemory(Evidence(root=None, limits=Limits()), size or ModelSize(2, "")), rank)  # type: ignore[arg-type]


def test_categories_add_up_to_the_peak() -> None:
    peak = at_peak(training())
    assert peak is not None and peak.total_bytes == 160 * MIB == sum(peak.categories.values())
    assert peak.categories == {categories.UNKNOWN: 100 * MIB, "activations": 40 * MIB, "gradients": 20 * MIB}
    assert peak.computed == ()


def test_what_lay_there_before_is_shared_out_among_the_model_states() -> None:
    size = ModelSize(2, "ddp", 30 * MIB, 30 * MIB, 60 * MIB, "summary.json", 1)
    peak = at_peak(training(), size)
    assert peak is not None and peak.computed == ("parameters", "optimizer states", "gradients")
    assert peak.categories["parameters"] == 30 * MIB and peak.categories["optimizer states"] == 60 * MIB
    assert peak.categories["gradients"] == 30 * MIB, "20 of this window and 10 of before"


@pytest.mark.parametrize(
    ("flag", "category"),
    [("gathered", "gathered tensors"), ("sent", "buckets"), ("backend", "the backend's copies")],
)
def test_what_a_block_was_marked_as_counts_first(flag: str, category: str) -> None:
    peak = at_peak(training(), **{flag: True})
    assert peak is not None and peak.categories[category] == 20 * MIB


def test_logits_are_told_by_their_size() -> None:
    peak = at_peak(training(), ModelSize(2, "", logits_bytes=40 * MIB))
    assert peak is not None and peak.categories["logits"] == 40 * MIB and "activations" not in peak.categories


def test_what_outlives_its_step_is_for_something_else() -> None:
    recording = Recording(before=0)
    begin = recording.now_us
    recording.alloc(1, 10)
    recording.span("forward", begin)
    recording.span("ProfilerStep#0", begin)
    begin = recording.now_us
    recording.alloc(2, 5)
    recording.span("forward", begin)
    recording.span("ProfilerStep#1", begin)
    peak = at_peak(recording)
    assert peak is not None
    assert peak.categories == {"kept from earlier steps": 10 * MIB, "activations": 5 * MIB}


@pytest.mark.parametrize(("region", "name"), [("checkpoint", "checkpoint copies"), ("activation_checkpoint", "other")])
def test_what_a_checkpoint_stages_is_its_own_also_in_later_steps_and_at_the_size_of_the_logits(
    region: str, name: str
) -> None:
    recording = Recording(before=0)
    begin = recording.now_us
    recording.alloc(1, 10)
    recording.span(region, begin)
    peak = at_peak(recording, ModelSize(2, "", logits_bytes=10 * MIB if region == "checkpoint" else None))
    assert peak is not None and peak.categories == {name: 10 * MIB}
    recording.span("ProfilerStep#0", begin)
    begin = recording.now_us
    recording.alloc(2, 5)
    recording.span("ProfilerStep#1", begin)
    peak = at_peak(recording)
    kept = name if region == "checkpoint" else "kept from earlier steps"
    assert peak is not None and peak.categories == {kept: 10 * MIB, "other": 5 * MIB}


@pytest.mark.parametrize(
    ("before_mib", "parts"),
    [
        (0, {}),
        (20, {"parameters": 20}),
        (100, {"parameters": 30, "optimizer states": 60, "gradients": 10}),
        (130, {"parameters": 30, "optimizer states": 60, "gradients": 30, "unknown": 10}),
    ],
)
def test_states_are_shared_out_in_the_order_of_their_life(before_mib: int, parts: dict[str, int]) -> None:
    assert shared_out(before_mib * MIB, STATES) == {name: mib * MIB for name, mib in parts.items()}
    assert shared_out(5, None) == {"unknown": 5}


@pytest.mark.parametrize("device", [GPU, CPU])
def test_the_sweep_passes_through_the_peak_and_ends_where_it_began(device: int) -> None:
    curve = build(training(device).marks)
    assert curve is not None
    before = curve.baseline_bytes or 0
    rows = sweep(curve, before, None, None)
    assert max(map(total, rows)) == curve.peak_bytes
    assert total(rows[0]) == before == total(rows[-1])
    assert [time for time, _ in rows] == sorted(time for time, _ in rows) and rows[0][0] == 0.0
    assert all(size >= 0 for _, sizes in rows for size in sizes)


def test_every_category_is_drawn_as_a_kind() -> None:
    assert set(categories.KIND_OF.values()) <= set(KINDS) - {RESERVED} and AT[RESERVED] == len(KINDS) - 1
