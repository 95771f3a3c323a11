"""Which runs of a folder the options `--state`, `--failed` and `--older-than` mean."""

from pathlib import Path

import pytest

from diagnostics.runs.find import FAILED, STATES, Run
from dtk.console.options import Parser
from dtk.errors import DtkError
from dtk.runs.find import add_selection, check_selection, runs_in, selected, selects


def given(*argv: str):
    parser = Parser(prog="dtk ls")
    add_selection(parser)
    return parser.parse_args(argv)


RUNS = [
    Run("a", "runs/a", "finished", quiet_s=10.0),
    Run("b", "runs/b", "hung", quiet_s=3600.0),
    Run("c", "runs/c", "oom", quiet_s=8 * 86400.0),
    Run("d", "runs/d", "damaged"),
]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "abcd"),
        (["--state", "finished"], "a"),
        (["--state", "hung,oom", "--state", "damaged"], "bcd"),
        (["--failed"], "bc"),
        (["--older-than", "30m"], "bc"),
        (["--older-than", "1w"], "c"),
        (["--older-than", "10s"], "bc"),
        (["--failed", "--older-than", "2d"], "c"),
        (["--state", "running"], ""),
    ],
)
def test_runs_that_match_all_options(argv: list[str], expected: str) -> None:
    arguments = given(*argv)
    assert "".join(run.id for run in selected(RUNS, arguments)) == expected
    assert selects(arguments) == bool(argv)


@pytest.mark.parametrize(("text", "age_s"), [("90s", 90), ("1.5m", 90), ("3h", 10800), ("7d", 604800), ("2w", 1209600)])
def test_lengths_of_time(text: str, age_s: float) -> None:
    assert given("--older-than", text).older_than == age_s


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--state", "fialed"], "'fialed' is not a state; did you mean failed?"),
        (["--state", "x"], f"'x' is not a state; states: {', '.join(STATES)}"),
        (["--state", ","], "no state is given"),
        (["--older-than", "7"], "'7' is not a duration; write 90s, 5m, 3h, 7d or 2w"),
        (["--older-than", "-1d"], "expected one argument"),
        (["--older-than", "1e3s"], "'1e3s' is not a duration"),
    ],
)
def test_what_cannot_be_read_is_one_line(argv: list[str], message: str) -> None:
    with pytest.raises(DtkError) as caught:
        given(*argv)
    assert message in str(caught.value)


def test_two_ways_of_naming_states_are_refused() -> None:
    with pytest.raises(DtkError) as caught:
        check_selection(given("--failed", "--state", "finished"))
    assert caught.value.why == f"--failed is --state {','.join(FAILED)}"
    assert caught.value.fix.endswith(f"--state finished,{','.join(FAILED)}")


def test_runs_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert runs_in(Path("runs"), "dtk ls FOLDER") == [], "there are none yet"
    with pytest.raises(DtkError, match="cannot list elsewhere: No such file or directory - dtk ls FOLDER"):
        runs_in(Path("elsewhere"), "dtk ls FOLDER")
