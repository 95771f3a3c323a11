"""Parity: the same work -> comparable; anything else -> what differs is named, and no speed is compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from dtk.compare.compare import compare
from dtk.compare.model import Comparison
from dtk.compare.report import headline
from tests.unit.compare.folders import check, losses, make_run


def gate(tmp_path: Path, **changes: Any) -> Comparison:
    """A run under ddp beside one under fsdp with `changes`."""
    change = {"strategy": {"name": "fsdp", "reshard_after_forward": True}, **changes.pop("change", {})}
    first = make_run(tmp_path, "a")
    return compare([first, make_run(tmp_path, "b", change=change, **changes)])


def test_the_same_work_under_two_strategies_is_comparable(tmp_path: Path) -> None:
    comparison = gate(tmp_path, times_s=0.2)
    assert comparison.fair
    assert {check.status for check in comparison.checks} == {"same"}
    assert [variant.label for variant in comparison.variants] == ["ddp", "fsdp"]
    assert len(comparison.verdicts) == 1
    assert "2.00x slower than ddp" in comparison.verdicts[0]


@pytest.mark.parametrize(
    ("key", "changes", "text"),
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
        ("losses", {"loss": losses(12, 1.01)}, "1.00% apart"),
        ("losses", {"loss": [5.4, float("nan"), *losses(12)[2:]]}, "not finite at step 2"),
    ],
)
def test_what_differs_is_named_and_no_speed_is_compared(
    tmp_path: Path, key: str, changes: dict[str, Any], text: str
) -> None:
    comparison = gate(tmp_path, times_s=[0.2] * changes.get("change", {}).get("train.steps", 12), **changes)
    assert check(comparison, key).status == "differs"
    assert text in check(comparison, key).detail
    assert not comparison.fair
    assert not comparison.verdicts
    assert all(cell.ratio is None for figure in comparison.figures for cell in figure.cells)
    assert headline(comparison).startswith("not comparable")


def test_runs_whose_initial_weights_are_unknown_are_never_said_to_be_comparable(tmp_path: Path) -> None:
    comparison = gate(tmp_path, parity={})
    assert check(comparison, "weights").status == "unknown"
    assert "fsdp" in check(comparison, "weights").detail
    assert comparison.fair and comparison.figures and not comparison.comparable
    assert headline(comparison) == (
        "not known to be comparable (initial weights (hash): not recorded by fsdp); nothing else differs"
    )
    assert any("not checked" in note and "initial weights" in note for note in comparison.notes)


def test_losses_are_counted_where_both_logged_them(tmp_path: Path) -> None:
    comparison = gate(tmp_path, log_every=3)
    assert "over 5 steps that both logged" in check(comparison, "losses").detail


def test_one_rank_fits_every_reduction(tmp_path: Path) -> None:
    alone = make_run(
        tmp_path, "a", change={"strategy": {"name": "single"}}, world_size=1, parity={"reduce_dtype": None}
    )
    assert compare([alone, make_run(tmp_path, "b")]).fair
    cut = make_run(tmp_path, "c", change={"parallel": {"tp": 2}}, parity={"reduce_dtype": None})
    assert check(compare([cut, make_run(tmp_path, "d")]), "reduce_dtype").status == "same"
    assert "nothing is reduced" in check(compare([cut, alone]), "reduce_dtype").detail


def test_samples_are_compared_where_both_logged(tmp_path: Path) -> None:
    """Another logging interval is no other data; other samples before a common step are."""
    same = compare(
        [make_run(tmp_path, "a"), make_run(tmp_path, "b", change={"strategy.bucket_cap_mb": 1}, log_every=5)]
    )
    assert check(same, "samples").status == "same"
    other = make_run(tmp_path, "c", change={"strategy.bucket_cap_mb": 2}, log_every=5, samples=[1, 2, 4, *range(4, 13)])
    result = check(compare([tmp_path / "a", other]), "samples")
    assert result.status == "differs"
    assert "step 5" in result.detail


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
    assert not compare(runs, loss_tolerance=0.005).fair


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
    # The first attempt got to step 8 with other samples after step 5, from where the second attempt continued.
    begun = [{**line, "samples_hash": "ff", "loss": 9.0} if line["step"] > 5 else line for line in lines[:8]]
    again = [{**line, "attempt": 1} for line in lines[5:]]
    (second / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in begun + again))
    comparison = compare([first, second])
    assert comparison.fair
    assert check(comparison, "samples").detail == "the same in all of the first 12 steps"
    # Both attempts warm up: steps 3 to 5 and 8 to 12 remain.
    (cell,) = (
        c
        for f in comparison.figures
        for c in f.cells
        if f.key == "step_time_s" and c.variant != comparison.variants[0].label
    )
    assert cell.estimate is not None


def hooked(tmp_path: Path, name: str, hook: str, **more: Any) -> Path:
    change = {"strategy": {"name": "ddp", "communication_hook": hook, **more.pop("strategy", {})}}
    return make_run(tmp_path, name, change=change, **more)


@pytest.mark.parametrize("hook", ["topk", "powersgd", "of_a_newer_dtk"])
def test_a_hook_that_drops_gradients_has_no_tolerance_and_its_difference_is_shown(tmp_path: Path, hook: str) -> None:
    """2 ranks beside 4, or another bucket: losses that are 30% apart decide nothing, and none are called the same."""
    runs = [
        hooked(tmp_path, "a", hook, strategy={"bucket_cap_mb": 25}),
        hooked(tmp_path, "b", hook, strategy={"bucket_cap_mb": 1}, loss=losses(12, 1.3)),
    ]
    comparison = compare(runs)
    losses_check = check(comparison, "losses")
    assert losses_check.status == "unknown" and comparison.fair
    assert losses_check.detail.startswith("at most 30.000% apart over 12 steps that both logged; ")
    assert f"communication_hook={hook} drops part of the gradients" in losses_check.detail
    assert any(note.startswith("not checked: losses (at most 30.000% apart") for note in comparison.notes)
    strict = check(compare(runs, loss_tolerance=0.02), "losses")
    assert strict.status == "differs" and "allowed: 2.00%" in strict.detail
    loose = check(compare(runs, loss_tolerance=0.5), "losses")
    assert loose.status == "same"


@pytest.mark.parametrize(
    ("hook", "scale", "status"),
    [("none", 1.01, "differs"), ("int8", 1.01, "same"), ("bf16", 1.03, "differs"), ("fp16", 1.01, "same")],
)
def test_a_hook_that_rounds_widens_the_tolerance(tmp_path: Path, hook: str, scale: float, status: str) -> None:
    runs = [hooked(tmp_path, "a", hook), hooked(tmp_path, "b", hook, loss=losses(12, scale), gpu="H100")]
    assert check(compare(runs), "losses").status == status


def test_a_loss_that_is_not_finite_differs_under_any_hook(tmp_path: Path) -> None:
    bad = [5.4, float("nan"), *losses(12)[2:]]
    runs = [hooked(tmp_path, "a", "topk"), hooked(tmp_path, "b", "topk", loss=bad, gpu="H100")]
    assert check(compare(runs), "losses").status == "differs"


def test_a_difference_over_a_stretch_is_told_as_it_is(tmp_path: Path) -> None:
    """Later losses are compared by means over 20 steps, with 2.5 times the tolerance."""
    base = [5.0] * 40
    drifted = [*base[:20], *[5.02] * 20]
    change = {"train.steps": 40}
    runs = [
        make_run(tmp_path, "a", change=change, loss=base, times_s=[0.1] * 40),
        make_run(tmp_path, "b", change={**change, "seed": 2}, loss=drifted, times_s=[0.1] * 40),
    ]
    detail = check(compare(runs), "losses").detail
    assert "5.0200 against 5.0000 at step 40 (0.40% apart, allowed: 0.25%)" in detail
