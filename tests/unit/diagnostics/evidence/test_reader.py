"""What a reader gives: contents that say something or nothing, and handles with the rank of their name."""

from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import LogFact, Owner, Problem, RankError
from diagnostics.evidence.reader import Contents, Handle, Source, loaded, opens


class Trace(Handle, frozen=True):
    """A kind of large file."""

    kind = "trace"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_00003.json", 3),
        ("trace_rank12.json", 12),
        ("rank3/trace.json", 3),
        ("trace.json", None),
        ("llama_rank_7b_3.json", 3),
    ],
)
def test_a_handle_has_the_rank_of_its_name_and_is_not_opened(tmp_path: Path, name: str, rank: int | None) -> None:
    limits = Limits(files=7)
    contents = opens(Trace)(Source(tmp_path / name, name, b"{", limits, Owner()))
    (handle,) = contents.handles
    assert isinstance(handle, Trace) and contents
    assert (handle.path, handle.file, handle.rank, handle.limits) == (tmp_path / name, name, rank, limits)
    assert not (tmp_path / name).exists(), "it is read when it is loaded"


def test_contents_say_something_with_one_record_of_any_kind() -> None:
    assert not Contents("a.log", problem="it ends in the middle", dropped=3)
    fact, error = LogFact("nccl_warn", 0, "a.log", 1, "text"), RankError(0, "a.log", 1, "ValueError", "bad")
    for content in (Contents("a.log", facts=[fact]), Contents("a.log", errors=[error])):
        assert content
    assert not Contents("a.log").facts, "no contents share their lists"


def test_a_file_that_cannot_be_read_is_a_problem_or_left_to_others(tmp_path: Path) -> None:
    def read(handle: Trace) -> str:
        if handle.rank == 1:
            raise ValueError
        if handle.rank == 2:
            raise OSError("no such file")
        return f"trace of rank {handle.rank}"

    traces = [Trace(tmp_path / f"{rank}.json", f"{rank}.json", rank, Limits()) for rank in range(4)]
    problems: list[Problem] = []
    contents = [(handle.rank, content) for handle, content in loaded(traces, read, problems)]
    assert contents == [(0, "trace of rank 0"), (3, "trace of rank 3")]
    assert [(problem.kind, problem.file, problem.what, problem.unread) for problem in problems] == [
        ("trace", "1.json", "ValueError", True),
        ("trace", "2.json", "no such file", True),
    ]
    (*_,) = loaded(traces, read, problems, "flight")
    assert [problem.kind for problem in problems[2:]] == ["flight", "flight"]
    assert len([*loaded(traces, read)]) == 2 and len(problems) == 4
