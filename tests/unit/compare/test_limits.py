from pathlib import Path

import pytest

from dtk.commands.main import main
from dtk.compare.compare import compare
from dtk.compare.limits import check_limits, limit_row, parse_limit
from dtk.compare.model import Comparison
from dtk.errors import DtkError
from tests.unit.compare.folders import CONFIG, make_run

STEPS = CONFIG["train"]["steps"]


def times(level: float, spread: float = 0.01) -> list[float]:
    """Steps around a level, the same noise for everybody."""
    return [level * (1 + spread * ((7 * step) % 5 - 2) / 2) for step in range(STEPS)]


def checked(tmp_path: Path, limit: str, *runs: list[float], **more: object) -> dict:
    first = make_run(tmp_path, "base", times_s=times(0.1), change={"train.steps": STEPS})
    others = [make_run(tmp_path, f"run{i}", times_s=run, minute=i + 1, **more) for i, run in enumerate(runs)]
    (result,) = check_limits(compare([first, *others]), [first], [limit])
    return result


def test_a_limit_is_a_kind_and_a_percentage():
    assert parse_limit("slower=2%") == ("slower", 1.02)
    assert parse_limit("memory=0.5%") == ("memory", 1.005)
    for text in ("slower", "slower=2", "faster=2%", "slower=-2%", "slower=1e3%", "slower=2%%", "slower=%"):
        with pytest.raises(DtkError, match="write KIND=PERCENT"):
            parse_limit(text)


def test_a_run_that_is_clearly_slower_fails(tmp_path):
    result = checked(tmp_path, "slower=2%", times(0.12))
    assert result["failed"] and result["ratio"] == pytest.approx(1.2) and 1.02 < result["low"] < 1.2 < result["high"]
    assert limit_row(result)[0] == "FAIL" and limit_row(result)[1].startswith("slower=2%: ")
    assert " takes 1.200 times the baseline (95% interval 1." in limit_row(result)[1]


def test_what_noise_explains_is_undecided_and_does_not_fail(tmp_path):
    result = checked(tmp_path, "slower=2%", times(0.102, 0.1))
    assert not result["failed"] and not result["decided"]
    word, text = limit_row(result)
    assert word == "undecided" and text.startswith("slower=2%") and "three repeats" in text


def sides(tmp_path: Path, before: list[list[float]], **after: list[list[float]]) -> tuple[Comparison, list[Path]]:
    """Runs of a baseline, and of other strategies, taken in turns."""
    folders = {"base": before, **after}
    by_name = {
        name: [
            make_run(tmp_path, f"{name}{i}", times_s=run, minute=i, change={"strategy.name": name} if after else None)
            for i, run in enumerate(runs)
        ]
        for name, runs in folders.items()
    }
    return compare([run for runs in by_name.values() for run in runs]), by_name["base"]


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_the_ratio_is_that_of_the_table(tmp_path, repeats):
    """Repeats drift together, so ratios of pairs and the ratio of medians differ."""
    before = [times(0.1 * (1 + i)) for i in range(repeats)]
    after = [times(0.1 * (1 + i) * (1.1 + 0.01 * i)) for i in range(repeats)]
    comparison, base = sides(tmp_path, before, zero1=after)
    (result,) = check_limits(comparison, base, ["slower=2%"])
    (table,) = (figure.cells[1].ratio for figure in comparison.figures if figure.key == "step_time_s")
    assert result["variant"] == "zero1" and result["ratio"] == table.median
    assert result["low"] <= result["ratio"] <= result["high"]
    if repeats >= 3:
        assert (result["low"], result["high"]) == (table.low, table.high) and result["failed"]


def test_each_variant_is_held_against_all_runs_of_the_baseline(tmp_path):
    comparison, base = sides(tmp_path, [times(0.1)] * 3, zero1=[times(0.12)] * 3, fsdp=[times(0.08)] * 3)
    by_variant = {result["variant"]: result["failed"] for result in check_limits(comparison, base, ["slower=2%"])}
    assert by_variant == {"zero1": True, "fsdp": False}


def test_the_first_name_may_be_a_folder_of_repeats(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        make_run(tmp_path / "main", f"base{i}", times_s=times(0.1), minute=2 * i)
        make_run(tmp_path / "branch", f"new{i}", times_s=times(0.12), minute=2 * i + 1)
    assert main(["compare", "--baseline", "main", "branch", "--fail-if", "slower=2%"]) == 1
    assert " takes 1.200 times the baseline (95% interval 1.200 to 1.200)" in capsys.readouterr().out


def test_a_faster_run_is_ok(tmp_path):
    result = checked(tmp_path, "slower=2%", times(0.08))
    assert not result["failed"] and result["decided"] and limit_row(result)[0] == "ok"


def test_the_highest_peak_is_compared(tmp_path):
    result = checked(tmp_path, "memory=5%", times(0.1), memory_bytes=440 << 20)
    assert result["failed"] and result["ratio"] == pytest.approx(1.1)


def test_a_baseline_without_figures_is_refused(tmp_path):
    base = make_run(tmp_path, "base", state="failed")
    others = [make_run(tmp_path, name) for name in ("a", "b")]
    with pytest.raises(DtkError, match="the baseline lacks figures"):
        check_limits(compare([base, *others]), [base], ["slower=2%"])


def test_the_command_ends_in_1_with_one_line_for_each_limit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", "base", times_s=times(0.1))
    make_run(tmp_path / "runs", "slow", times_s=times(0.12), minute=1)
    limits = ["--fail-if", "slower=2%", "--fail-if", "memory=5%"]
    assert main(["compare", "--baseline", "base", "slow", *limits]) == 1
    *_, first, second = capsys.readouterr().out.rstrip().splitlines()
    assert first.startswith("FAIL") and second.startswith("ok")
    assert main(["compare", "--baseline", "slow", "base", *limits]) == 0
    assert main(["compare", "base", "slow"]) == 0
    assert main(["compare", "base", "slow", "--fail-if", "much"]) == 2
