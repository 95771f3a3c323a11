"""The parity gate: same work -> figures; anything else -> what differs, and no speed verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from dtk.compare import jsonform
from dtk.compare.compare import Options, compare
from dtk.compare.model import Check, Comparison
from dtk.compare.report import headline
from tests.unit.compare.folders import as_page, losses, make_run


def gate(tmp_path: Path, **changes: Any) -> Comparison:
    """A run under ddp beside one under fsdp with `changes`."""
    change = {"strategy": {"name": "fsdp", "reshard_after_forward": True}, **changes.pop("change", {})}
    first = make_run(tmp_path, "a")
    return compare([first, make_run(tmp_path, "b", change=change, **changes)])


def check(found: Comparison, key: str) -> Check:
    return next(one for one in found.checks if one.key == key)


def test_the_same_work_under_two_strategies_is_comparable(tmp_path: Path) -> None:
    found = gate(tmp_path, times_s=0.2)
    assert found.fair
    assert {one.status for one in found.checks} == {"same"}
    assert [one.label for one in found.variants] == ["ddp", "fsdp"]
    assert len(found.verdicts) == 1
    assert "2.00x slower than ddp" in found.verdicts[0]


@pytest.mark.parametrize(
    ("key", "changes", "told"),
    [
        ("tokens", {"change": {"train.global_batch_size": 16}}, "2048"),
        ("samples", {"samples": [1, 2, 3, 99, *range(5, 13)]}, "step 4"),
        ("weights", {"parity": {"initial_weights_hash": "0000000000000007"}}, "0000000000000007"),
        ("master_dtype", {"parity": {"master_dtype": "bfloat16"}}, "fsdp: bfloat16"),
        ("compute_dtype", {"parity": {"compute_dtype": "bfloat16"}}, "fsdp: bfloat16"),
        ("reduce_dtype", {"parity": {"reduce_dtype": "bfloat16"}}, "fsdp: bfloat16"),
        ("clipping", {"change": {"train.clip_norm": None}}, "clip_norm=none"),
        ("data", {"data": {"sha256": "ffff"}}, "sha256=ffff"),
        ("model", {"change": {"model": {"name": "gpt2_tiny", "architecture": "gpt", "width": 256}}}, "width=256"),
        ("optimizer", {"change": {"optimizer": {"name": "sgd", "lr": 0.1}}}, "name=sgd"),
        ("schedule", {"change": {"train.steps": 13}}, "train.steps=13"),
        ("fault", {"change": {"fault": {"name": "straggler"}}}, "straggler"),
        ("losses", {"loss": losses(12, 1.01)}, "1.00 % apart"),
        ("losses", {"loss": [5.4, float("nan"), *losses(12)[2:]]}, "not finite at step 2"),
    ],
)
def test_what_differs_is_named_and_no_speed_is_compared(
    tmp_path: Path, key: str, changes: dict[str, Any], told: str
) -> None:
    found = gate(tmp_path, times_s=[0.2] * changes.get("change", {}).get("train.steps", 12), **changes)
    assert check(found, key).status == "differs"
    assert told in check(found, key).detail
    assert not found.fair
    assert not found.verdicts
    assert all(cell.ratio is None for figure in found.figures for cell in figure.cells)
    assert headline(found).startswith("not comparable")


def test_what_was_not_recorded_is_unknown_and_losses_still_decide(tmp_path: Path) -> None:
    found = gate(tmp_path, parity={})
    assert check(found, "weights").status == "unknown"
    assert "fsdp" in check(found, "weights").detail
    assert found.fair
    assert any("not checked" in note and "initial weights" in note for note in found.notes)


def test_losses_are_counted_where_both_logged_them(tmp_path: Path) -> None:
    found = gate(tmp_path, log_every=3)
    assert "over 5 steps that both logged" in check(found, "losses").detail


def test_one_run_with_figures_is_the_same_as_nothing(tmp_path: Path) -> None:
    for n, change in enumerate(({}, {"strategy": {"name": "fsdp"}})):
        runs = tmp_path / str(n)
        failed = make_run(runs, "f", change=change, state="failed", times_s=[])
        found = compare([make_run(runs, "a"), failed])
        assert {one.status for one in found.checks} == {"unknown"}
        assert not found.comparable
        assert jsonform.as_json(found)["comparable"] is False
        assert "NOT COMPARABLE" in as_page(found)
        assert headline(found) == "only ddp has figures: there is nothing to compare it with"
        assert not any("not checked" in note for note in found.notes)


def test_repeats_of_one_variant_are_told_as_that(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", times_s=0.2)]
    found = compare(runs)
    assert found.comparable
    assert headline(found).startswith("one variant, 2 repeats of ddp")
    assert jsonform.as_json(found)["comparable"] is True
    speed = next(one for one in found.figures if one.key == "step_time_s")
    assert [one.estimate and one.estimate.count for one in speed.cells] == [2]
    other = make_run(tmp_path, "c", parity={"initial_weights_hash": "7"})
    assert headline(compare([*runs, other])).startswith("not comparable")


def test_one_rank_fits_every_reduction(tmp_path: Path) -> None:
    alone = make_run(
        tmp_path, "a", change={"strategy": {"name": "single"}}, world_size=1, parity={"reduce_dtype": None}
    )
    assert compare([alone, make_run(tmp_path, "b")]).fair


def test_samples_are_compared_where_both_logged(tmp_path: Path) -> None:
    """Another logging interval is no other data; other samples before a common step are."""
    same = compare(
        [make_run(tmp_path, "a"), make_run(tmp_path, "b", change={"strategy.bucket_cap_mb": 1}, log_every=5)]
    )
    assert check(same, "samples").status == "same"
    other = make_run(tmp_path, "c", change={"strategy.bucket_cap_mb": 2}, log_every=5, samples=[1, 2, 4, *range(4, 13)])
    found = check(compare([tmp_path / "a", other]), "samples")
    assert found.status == "differs"
    assert "step 5" in found.detail


def test_the_tolerance_follows_the_number_format_and_the_option(tmp_path: Path) -> None:
    close = losses(12, 1.01)
    half = {"precision": {"name": "bf16", "compute_dtype": "bfloat16", "reduce_dtype": "float32", "tf32": False}}
    runs = [
        make_run(tmp_path, "a", change=half, parity={"compute_dtype": "bfloat16"}),
        make_run(
            tmp_path,
            "b",
            change={**half, "strategy.bucket_cap_mb": 1},
            parity={"compute_dtype": "bfloat16"},
            loss=close,
        ),
    ]
    assert compare(runs).fair
    assert not compare(runs, Options(loss_tolerance=0.005)).fair


def test_rounding_that_grows_with_the_steps_is_no_difference_but_another_course_is(tmp_path: Path) -> None:
    steps = 100
    change = {"train.steps": steps}
    base = [5.0 - 0.01 * n for n in range(steps)]
    noisy = [value * (1 + (0.004 if n % 2 else -0.004) * (n >= 20)) for n, value in enumerate(base)]
    drifted = [value * (1 + 0.004 * (n >= 20)) for n, value in enumerate(base)]
    times = [0.1] * steps
    first = make_run(tmp_path, "a", change=change, loss=base, times_s=times)
    change = {**change, "strategy.bucket_cap_mb": 1}
    assert compare([first, make_run(tmp_path, "b", change=change, loss=noisy, times_s=times)]).fair
    assert not compare([first, make_run(tmp_path, "c", change=change, loss=drifted, times_s=times)]).fair


def test_steps_that_a_resumed_run_made_again_count_once(tmp_path: Path) -> None:
    first = make_run(tmp_path, "a")
    second = make_run(tmp_path, "b", change={"strategy.bucket_cap_mb": 1})
    lines = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    # The first attempt got to step 8 with other samples after step 5, from where the second attempt went on.
    begun = [{**line, "samples_hash": "ff", "loss": 9.0} if line["step"] > 5 else line for line in lines[:8]]
    again = [{**line, "attempt": 1} for line in lines[5:]]
    (second / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in begun + again))
    found = compare([first, second])
    assert found.fair
    assert check(found, "samples").detail == "the same in all of the first 12 steps"
    # Both attempts warm up: steps 3 to 5 and 8 to 12 remain.
    (cell,) = (
        c for f in found.figures for c in f.cells if f.key == "step_time_s" and c.variant != found.variants[0].label
    )
    assert cell.estimate is not None


def test_batches_side_by_side_are_compared_batch_by_batch(tmp_path: Path) -> None:
    runs = []
    for batch in (8, 16):
        for strategy in ("ddp", "fsdp"):
            change = {"strategy": {"name": strategy}, "train.global_batch_size": batch}
            own = losses(12, batch / 8)  # Another batch has another loss.
            runs.append(
                make_run(tmp_path, f"{strategy}{batch}", change=change, loss=own, samples=range(batch, batch + 12))
            )
    found = compare(runs)
    assert found.fair
    assert len(found.verdicts) == 2
    assert {one.column for one in found.grid} == {"batch 8", "batch 16"}
    # One batch that nobody else has cannot be held against anything.
    alone = make_run(tmp_path, "odd", change={"train.global_batch_size": 32})
    assert not compare([*runs, alone]).fair
