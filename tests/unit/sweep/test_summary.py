"""The last words of a sweep."""

from dtk.errors import DtkError
from dtk.sweep.summary import print_ending
from tests.unit.sweep.launches import begin


def test_the_last_words_say_what_failed_and_how_to_go_on(tmp_path, points, launches, capsys):
    launches.ends = {0: "oom", 1: DtkError("no data")}
    sweep, runner = begin(tmp_path, points)
    code = runner.interleaved(sweep.points)
    print_ending(sweep, code, "dtk run -m --resume", 3, {"name": "loss", "goal": "minimize"})
    out = capsys.readouterr().out
    assert "1 of 3 runs done" in out
    assert "strategy=ddp: out of memory: as oom" in out
    assert "strategy=zero1: refused: no data" in out
    assert "to continue with the remaining runs: dtk run -m --resume" in out


def test_the_end_counts_as_the_headlines_do(tmp_path, points, launches, capsys):
    """What was never begun is part of the whole: points that were given up, here."""
    launches.ends = {0: "failed", 1: "oom"}
    sweep, runner = begin(tmp_path, points, repeats=2)
    code = runner.interleaved(sweep.points)
    print_ending(sweep, code, "dtk run -m --resume", runner.total)
    out = capsys.readouterr().out
    assert "[6/6] " in out and "2 of 6 runs done" in out and "  2 runs not started\n" in out
