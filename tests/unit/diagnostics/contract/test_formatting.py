"""How ranks, counts, bytes and seconds are written."""

import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract.formatting import (
    RUNS_SHOWN,
    UNNAMED,
    Bytes,
    age,
    bytes_text,
    clean,
    command,
    counted,
    figure,
    file_name,
    filled,
    first_of,
    joined,
    numbers_text,
    override,
    ranks_spoken,
    ranks_text,
    region_text,
    seconds_text,
    sentence,
    typed,
    verb,
)

RANKS = st.sets(st.integers(0, 60))


def ranks_in(text: str) -> set[int]:
    """Read the ranks back from a text such as `ranks 0-2, 5 and 7`."""
    result: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text.partition(" more")[0]):
        result |= set(range(int(first), int(last or first) + 1))
    return result


@pytest.mark.parametrize(
    ("ranks", "listed", "spoken"),
    [
        ([], "", "no rank"),
        ([3], "rank 3", "rank 3"),
        ([1, 0], "ranks 0-1", "ranks 0 and 1"),
        ([0, 1, 3], "ranks 0-1, 3", "ranks 0, 1 and 3"),
        ([*range(7), 9, 9], "ranks 0-6, 9", "ranks 0-6 and 9"),
    ],
)
def test_ranks(ranks: list[int], listed: str, spoken: str) -> None:
    assert (ranks_text(ranks), ranks_spoken(ranks)) == (listed, spoken)


def test_many_ranks_are_cut() -> None:
    assert numbers_text(range(0, 40, 2)).endswith("20, 22, and 8 more")
    assert ranks_spoken(range(0, 40, 2)).endswith("20, 22 and 8 more")


@given(RANKS)
@settings(max_examples=100)
def test_no_rank_is_lost_or_added(ranks: set[int]) -> None:
    left_out = re.search(r"and (\d+) more", numbers_text(ranks))
    shown = ranks_in(numbers_text(ranks).partition(", and")[0])
    assert shown <= ranks and len(ranks) - len(shown) == (int(left_out[1]) if left_out else 0)
    runs = sum(rank - 1 not in ranks for rank in ranks)
    assert bool(left_out) == (runs > RUNS_SHOWN)


@given(RANKS.filter(lambda ranks: 0 < len(ranks) <= RUNS_SHOWN))
@settings(max_examples=50)
def test_the_spoken_and_the_listed_form_name_the_same_ranks(ranks: set[int]) -> None:
    assert ranks_in(ranks_spoken(ranks)) == ranks_in(ranks_text(ranks)) == ranks


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (3.28 * 2**30, "3.28 GiB"), (-1536, "-1.5 KiB"),
     (1012 * 1024, "1012 KiB"), (2**60, "1024 PiB")],
)  # fmt: skip
def test_bytes(value: float, text: str) -> None:
    assert bytes_text(value) == text


def test_a_number_of_bytes_formats_itself() -> None:
    assert f"{Bytes(3 << 20)} and {Bytes(3 << 20):,}" == "3 MiB and 3 MiB"
    assert Bytes(3) + 1 == 4


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(1.24, "1.24 s"), (0.0183, "18.3 ms"), (42e-6, "42 us"), (1240.0, "1,240 s"), (0.0, "0 s"), (1e-13, "0 s"),
     (-2.5, "-2.5 s"), (0.9999, "1,000 ms"), (5e-9, "5.0e-09 s")],
)  # fmt: skip
def test_seconds(value_s: float, text: str) -> None:
    assert seconds_text(value_s) == text


def test_words_agree_with_the_number() -> None:
    assert [counted(number, "rank") for number in (0, 1, 2, 1000)] == ["0 ranks", "1 rank", "2 ranks", "1,000 ranks"]
    assert [verb(ranks, "waits", "wait") for ranks in ((3,), (3, 3), (1, 2), ())] == ["waits", "waits", "wait", "wait"]


def test_a_sentence_begins_with_a_capital_and_keeps_the_rest() -> None:
    assert [sentence(text) for text in ("rank 3 waits", "NCCL", "")] == ["Rank 3 waits", "NCCL", ""]


@pytest.mark.parametrize("path", ["train.py", "/job/src/train.py", "C:\\job\\src\\train.py", "a\\b/train.py"])
def test_the_folders_of_a_file_are_dropped(path: str) -> None:
    assert file_name(path) == "train.py"


@given(st.text(max_size=60))
@settings(max_examples=100)
def test_what_is_shown_holds_no_control_character(text: str) -> None:
    assert clean(text).isprintable()


def test_control_sequences_are_made_visible_and_secrets_are_masked() -> None:
    assert clean("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"
    assert clean("api_key=abcdef0123456789") == "api_key=***"
    assert clean(None) == "None"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("{ranks:^} {ranks:is|are} late", "Ranks 0, 1 and 3 are late"),
        ("{one} {one:is|are} late", "rank 2 is late"),
        ("{by_rank:n} ranks: {by_rank}", "2 ranks: ranks 4 and 5"),
        ("{count:#call}, {ranks:#rank}", "1 call, 3 ranks"),
        ("{size:bytes} in {time:s} of {path:name}", "3 GiB in 18.3 ms of train.py"),
        ("{word:^}: {word} {word.upper}", "Late: late LATE"),
        ("{share:.0%} of {{step}}", "50% of {step}"),
        ("nothing to fill in", "nothing to fill in"),
    ],
)
def test_texts_are_filled_with_figures(text: str, written: str) -> None:
    figures = {
        "ranks": (0, 1, 3),
        "one": [2],
        "by_rank": {4: "a", 5: "b"},
        "count": 1,
        "size": 3 << 30,
        "time": 0.0183,
        "path": "/job/train.py",
        "word": "late",
        "share": 0.5,
    }
    assert filled(text, figures) == written


def test_what_a_figure_holds_is_never_a_text_to_fill() -> None:
    assert filled("{message}", {"message": "{ranks} {0.__class__}"}) == "{ranks} {0.__class__}"


@pytest.mark.parametrize(
    ("value", "text"), [(123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0, "0.00"), (100, "100")]
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert figure(value) == filled("{value:figure}", {"value": value}) == text


def test_names_are_joined_as_in_a_sentence() -> None:
    assert [joined(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


@pytest.mark.parametrize(
    ("region", "shown"),
    [
        ("all_gather 793088 B dp_shard", "all_gather of 774 KiB over dp_shard"),
        ("all_reduce 4 B control", "all_reduce of 4 bytes over control"),
        ("forward", "forward"),
        ("2 B or not 2 B", "2 B or not 2 B"),
    ],
)
def test_regions_of_collectives_have_readable_sizes(region: str, shown: str) -> None:
    assert region_text(region) == shown


def test_a_long_list_names_its_first_parts_and_counts_the_others() -> None:
    assert first_of(["a", "b"]) == "a, b"
    assert first_of(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    assert first_of([10, 11, 12], most=2, separator=" ") == "10 11 and 1 more"


def test_ranks_that_no_file_names_are_counted() -> None:
    assert ranks_spoken([UNNAMED]) == "an unidentified rank"
    assert ranks_spoken([0, 1, 2, UNNAMED]) == "ranks 0-2 and an unidentified rank"
    assert ranks_spoken([UNNAMED, 2 * UNNAMED]) == "2 unidentified ranks"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59, "59s"), (60, "1m"), (3600, "1h"), (86400 * 2.4, "2d")])
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scripts folder of this environment, below the working directory, with a `dtk` that says who it is."""
    folder = tmp_path / "my project" / ".venv" / "bin"
    program(folder / "dtk", "ours")
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(folder))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path / "my project")
    return folder


def program(path: Path, says: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {says} $1\n")
    path.chmod(0o755)


def says(line: str) -> str:
    return subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout.strip()


def test_a_script_that_is_not_on_path_is_named_by_its_path(scripts: Path) -> None:
    assert command("show", "runs/a b") == ".venv/bin/dtk show 'runs/a b'"
    assert says(command("show")) == "ours show"


def test_on_path_the_bare_name_is_enough(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{scripts}:/bin")
    assert command("ls") == "dtk ls"
    assert says("dtk ls") == "ours ls"


def test_a_link_on_path_is_this_environments_too(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "dtk").symlink_to(scripts / "dtk")
    monkeypatch.setenv("PATH", f"{tmp_path / 'local'}:/bin")
    assert command("ls") == "dtk ls"


def test_another_program_of_that_name_is_not_taken_for_ours(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "other" / "dtk", "theirs")
    monkeypatch.setenv("PATH", f"{tmp_path / 'other'}:/bin")
    assert says(command("ls")) == "ours ls"


def test_from_elsewhere_the_path_is_absolute(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert says(command("ls")) == "ours ls", "the folder's name has a space in it"
    monkeypatch.chdir(scripts)
    assert command("ls") == "./dtk ls"


def test_without_a_script_the_interpreter_runs_it(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scripts / "dtk").unlink()
    assert command("ls") == f"{sys.executable} -m dtk ls"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert command("ls") == "python -m dtk ls"


@pytest.mark.parametrize("folder", ["runs/20260101-gpt2", "runs/a = b, c", "it's", 'a "b"', "\u00e9\u2603", "null"])
def test_a_resumed_folder_comes_through_the_shell_and_hydra(folder: str) -> None:
    pytest.importorskip("hydra")
    from dtk.config.overrides import parse

    (argument,) = shlex.split(command("run", override("resume", folder)).split(" run ", 1)[1])
    assert parse(argument).value() == folder


def test_paths_are_relative_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed(tmp_path / "runs" / "x") == Path("runs/x")
    assert typed(tmp_path.parent) == tmp_path.parent
    lost = tmp_path / "gone"
    lost.mkdir()
    monkeypatch.chdir(lost)
    lost.rmdir()
    assert typed(tmp_path / "x") == tmp_path / "x"
