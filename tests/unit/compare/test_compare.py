"""From folders to a comparison: what is grouped, what is gated together, what is refused."""

from pathlib import Path

from dtk.compare.compare import compare
from dtk.compare.report import as_json, headline
from tests.unit.compare.folders import as_page, losses, make_run


def test_one_run_with_figures_is_the_same_as_nothing(tmp_path: Path) -> None:
    for n, change in enumerate(({}, {"strategy": {"name": "fsdp"}})):
        runs = tmp_path / str(n)
        failed = make_run(runs, "f", change=change, state="failed", times_s=[])
        comparison = compare([make_run(runs, "a"), failed])
        assert {check.status for check in comparison.checks} == {"unknown"}
        assert not comparison.comparable
        assert as_json(comparison)["comparable"] is False
        assert "NOT COMPARABLE" in as_page(comparison)
        assert headline(comparison) == "only ddp has figures: there is nothing to compare it with"
        assert not any("not checked" in note for note in comparison.notes)


def test_repeats_of_one_variant_are_told_as_that(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", times_s=0.2)]
    comparison = compare(runs)
    assert comparison.comparable
    assert headline(comparison).startswith("one variant, 2 repeats of ddp")
    assert as_json(comparison)["comparable"] is True
    speed = next(figure for figure in comparison.figures if figure.key == "step_time_s")
    assert [cell.estimate and cell.estimate.count for cell in speed.cells] == [2]
    other = make_run(tmp_path, "c", parity={"initial_weights_hash": "7"})
    assert headline(compare([*runs, other])).startswith("not comparable")


def test_batches_side_by_side_are_compared_batch_by_batch(tmp_path: Path) -> None:
    runs = []
    for batch in (8, 16):
        for strategy in ("ddp", "fsdp"):
            change = {"strategy": {"name": strategy}, "train.global_batch_size": batch}
            own = losses(12, batch / 8)  # Another batch has another loss.
            runs.append(
                make_run(tmp_path, f"{strategy}{batch}", change=change, loss=own, samples=range(batch, batch + 12))
            )
    comparison = compare(runs)
    assert comparison.fair
    assert len(comparison.verdicts) == 2
    assert {cell.column for cell in comparison.grid} == {"batch 8", "batch 16"}
    # One batch that nobody else has cannot be held against anything.
    alone = make_run(tmp_path, "odd", change={"train.global_batch_size": 32})
    assert not compare([*runs, alone]).fair
