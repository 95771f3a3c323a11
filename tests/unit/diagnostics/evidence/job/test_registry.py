"""Every registered reader: recognises its own files alone, reads an honest one, refuses a damaged one in one line."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.evidence.job import registry
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.job.registry import (
    LOG,
    absent_without,
    call_files,
    damaged,
    files_of_ranks,
    reader_of,
    readers,
    records,
    suffixes,
    titles,
    unused,
)
from diagnostics.evidence.limits import Limits, head
from diagnostics.evidence.model import Evidence, LogFact, Owner, Problem
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.readers.flight import FlightFile

KINDS = [reader.kind for reader in readers()]
READ_AS_LOGS = ("log_json",)
"""Kinds whose facts are lines, which count as those of logs."""
NAMES = {"log": "out.log", "stacks": "rank_0.txt", "nsys": "profile_0.sqlite", "telemetry": "node_0.jsonl"}


def samples(kind: str) -> tuple[bytes, bytes | None]:
    """The honest and the damaged file beside a reader's tests; a reader without both fails here."""
    module = importlib.import_module(f"tests.unit.diagnostics.evidence.readers.test_{kind}")
    return module.HONEST, module.DAMAGED


def reader_for(kind: str) -> Reader:
    return next(reader for reader in readers() if reader.kind == kind)


def source(folder: Path, kind: str, data: bytes) -> Source:
    path = folder / NAMES.get(kind, f"rank_0.{kind}")
    path.write_bytes(data)
    return Source(path, path.name, head(path), Limits(), Owner(0))


def opened(reader: Reader, of: Source) -> tuple[Contents, list[Any]]:
    contents = reader.open(of)
    loaded = [handle.load() for handle in contents.handles]
    return contents, [list(value) if hasattr(value, "__next__") else value for value in loaded]


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_file_is_taken_by_its_reader_and_read(tmp_path: Path, kind: str) -> None:
    of = source(tmp_path, kind, samples(kind)[0])
    reader = reader_of(of.path, of.head)
    assert isinstance(reader, Reader) and reader.kind == kind
    contents, loaded = opened(reader, of)
    assert contents and not contents.problem
    assert all(value for value in loaded)
    assert [handle.file for handle in contents.handles] == [of.file] * len(contents.handles)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_recognised_and_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    data = samples(kind)[1]
    if data is None:
        assert kind in (LOG, *READ_AS_LOGS)  # Text is never damaged.
        return
    of = source(tmp_path, kind, data)
    reader = reader_of(of.path, of.head)
    assert isinstance(reader, Reader) and reader.kind == kind
    with pytest.raises((ValueError, OSError)) as problem:
        opened(reader, of)
    assert str(problem.value) and "\n" not in str(problem.value)


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_reader_of_the_same_order_takes_it(kind: str) -> None:
    """Otherwise their names would decide."""
    honest = samples(kind)[0][:8192]
    order = reader_for(kind).order
    rivals = [reader.kind for reader in readers() if reader.order <= order and reader.recognise(honest)]
    assert rivals == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_gathering_finds_it_and_counts_it_under_its_kind(tmp_path: Path, kind: str) -> None:
    source(tmp_path, kind, samples(kind)[0])
    evidence = gather(tmp_path, Limits())
    assert [result for result, of in records(evidence).items() if of] == [LOG if kind in READ_AS_LOGS else kind]
    assert not evidence.problems


def test_a_kind_is_registered_once_and_named_as_its_file() -> None:
    folder = Path(importlib.import_module("diagnostics.evidence.readers").__path__[0])
    assert sorted(KINDS) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert readers()[-1].kind == LOG  # Asked last: any text is one.


def test_the_readers_titles_are_what_is_looked_for() -> None:
    assert "flight-recorder dumps" in titles() and titles().endswith("dtk run folders")
    assert "logs" in titles().split(", ")
    assert {".pickle", ".json", ".ring", ".sqlite"} <= suffixes() and ".log" not in suffixes()


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", "empty"), (b"PK\x03\x04 an archive", "none"), (b"\x80\x04K\x01.", "pickle"), (b"\x00\x01\x02" * 50, "none")],
)
def test_files_without_evidence(data: bytes, expected: str) -> None:
    assert reader_of(Path("x"), data) == expected


def test_text_is_a_log_unless_its_name_says_otherwise() -> None:
    assert isinstance(reader_of(Path("out"), b"step 1\n"), Reader)
    assert reader_of(Path("data.jsonl"), b"step 1\n") == "none"


class InMemory:
    """A handle that was never a file."""

    file = "rank 0 in memory"
    rank = 0

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    def load(self) -> list[object]:
        if self.problem:
            raise ValueError(self.problem)
        return []


def test_handles_in_memory_are_evidence() -> None:
    evidence = Evidence(Path("nowhere"), Limits(), files={"flight": [InMemory()]})
    assert evidence.handles(FlightFile) and records(evidence)["flight"] == evidence.handles(FlightFile)
    assert not unused(evidence)


def test_files_of_ranks_and_of_calls_are_those_of_readers_that_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [reader.kind for reader in readers() if reader.has_calls] == ["flight", "ring"]
    named = ("toy", "ring", "trace", "flight", "log", "simulation")
    evidence = Evidence(Path("nowhere"), Limits(), files={kind: [kind] for kind in named})
    assert call_files(evidence) == ["flight", "ring", "simulation"], "the flight recorder's before the ring's"
    assert files_of_ranks(evidence) == ["flight", "ring", "trace"]
    toy = replace(reader_for("ring"), kind="toy")
    monkeypatch.setattr(registry, "readers", lambda: (*readers(), toy))
    assert "toy" in call_files(evidence) and "toy" in files_of_ranks(evidence)


def test_evidence_that_nothing_could_read_is_unused() -> None:
    broken = InMemory("cut off")
    evidence = Evidence(Path("nowhere"), Limits(), files={"flight": [broken]})
    assert not unused(evidence)  # Nobody complained.
    evidence.problems.append(Problem("flight", broken.file, "cut off"))
    assert [problem.what for problem in unused(evidence)] == ["cut off"]
    evidence.facts.append(LogFact("start", 0, "f", 0, "x"))
    assert not unused(evidence)


def test_damage_is_what_a_reader_lost() -> None:
    problems = [Problem("flight", "a", "x"), Problem("step_records", "b", "x"), Problem("file", "c", "x"),
                Problem("log", "d", "x", harmless=True)]  # fmt: skip
    evidence = Evidence(Path("nowhere"), Limits(), problems=problems)
    assert [problem.file for problem in damaged(evidence)] == ["a", "b"]
    assert [problem.file for problem in damaged(evidence, harmless=True)] == ["a", "b", "d"]


def test_what_a_rank_lacks_without_a_file() -> None:
    assert [absent_without(kind) for kind in ("flight", "nsys", "log", "simulation", "detector")] == [
        "dump", "export", "", "simulation", ""
    ]  # fmt: skip


def test_every_problem_by_name_is_said_in_words_and_others_are_quoted() -> None:
    named = Problem("flight", "f", "clock_ahead", figures={"ranks": [2, 3], "apart_s": 4.0, "first": 0})
    assert named.what.startswith("the clock of ranks 2 and 3 is 4.0 s ahead of that of rank 0")
    assert Problem("file", "", "foreign_files", figures={"files": ["a", "b"]}).what == "no evidence in a, b"
    assert Problem("file", "f", "damaged").what == "damaged"
