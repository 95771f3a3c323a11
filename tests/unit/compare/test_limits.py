from pathlib import Path

import pytest

from dtk.commands.main import main
from dtk.compare.compare import compare
from dtk.compare.limits import check_limits, limit_text, parse_limit
from dtk.errors import DtkError
from tests.unit.compare.folders import CONFIG, make_run

STEPS = CONFIG["train"]["steps"]


def times(level: float, spread: float = 0.01) -> list[float]:
    """Steps around a level, the same noise for everybody."""
    return [level * (1 + spread * ((7 * step) % 5 - 2) / 2) for step in range(STEPS)]


def checked(tmp_path: Path, limit: str, *runs: list[float], **more: object) -> dict:
    first = make_run(tmp_path, "base", times_s=times(0.1), change={"train.steps": STEPS})
    others = [make_run(tmp_path, f"run{i}", times_s=run, minute=i + 1, **more) for i, run in enumerate(runs)]
    (found,) = check_limits(compare([first, *others]), first, [limit])
    return found


def test_a_limit_is_a_kind_and_a_percentage():
    assert parse_limit("slower=2%") == ("slower", 1.02)
    assert parse_limit("memory=0.5%") == ("memory", 1.005)
    for text in ("slower", "slower=2", "faster=2%", "slower=-2%", "slower=1e3%", "slower=2%%", "slower=%"):
        with pytest.raises(DtkError, match="write KIND=PERCENT"):
            parse_limit(text)


def test_a_run_that_is_clearly_slower_fails(tmp_path):
    found = checked(tmp_path, "slower=2%", times(0.12))
    assert found["failed"] and found["ratio"] == pytest.approx(1.2) and 1.02 < found["low"] < 1.2 < found["high"]
    assert limit_text(found).startswith("FAIL      slower=2%: 1.200 times the baseline (95% interval 1.")


def test_what_noise_explains_is_undecided_and_does_not_fail(tmp_path):
    found = checked(tmp_path, "slower=2%", times(0.102, 0.1))
    assert not found["failed"] and not found["decided"]
    assert limit_text(found).startswith("undecided slower=2%") and "three repeats" in limit_text(found)


def test_a_faster_run_is_ok(tmp_path):
    found = checked(tmp_path, "slower=2%", times(0.08))
    assert not found["failed"] and found["decided"] and limit_text(found).startswith("ok ")


def test_the_highest_peak_is_compared(tmp_path):
    found = checked(tmp_path, "memory=5%", times(0.1), memory_bytes=440 << 20)
    assert found["failed"] and found["ratio"] == pytest.approx(1.1)


def test_a_baseline_without_figures_is_refused(tmp_path):
    base = make_run(tmp_path, "base", state="failed")
    others = [make_run(tmp_path, name) for name in ("a", "b")]
    with pytest.raises(DtkError, match="the baseline lacks figures"):
        check_limits(compare([base, *others]), base, ["slower=2%"])


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
