"""Logs that a terminal folded at its width: read like the whole ones, and nothing else is joined."""

import html
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs.lines import LineReader, widths_of
from diagnostics.evidence.reader import Contents
from diagnostics.evidence.readers.log import read
from tests.work import calls_in

WATCHDOG = (
    "[rank{rank}]:[E1122 10:20:30.123 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for "
    "600028 milliseconds before timing out.\n"
    "[rank{rank}]:[E1122 10:20:30.123456789 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "Exception (either an error or timeout) detected by watchdog at work: 42, last enqueued NCCL work: 47, last "
    "completed NCCL work: 41.\n"
)
RAISED = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/workspace/projects/pretraining/source/package/training/loops/long_name.py", line 5, in train\n'
    "[rank1]:     loss.backward()\n"
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "79.15 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 78.02 GiB memory in use. Of "
    "the allocated memory 70.00 GiB is allocated by PyTorch, and 6.00 GiB is reserved by PyTorch but unallocated.\n"
)
LOG = (
    "starting\n"
    + "".join(WATCHDOG.format(rank=rank) for rank in range(4))
    + RAISED
    + "srun: error: node3: task 1: Killed\n"
)


def scanned(path: Path, text: str) -> Contents:
    path.write_text(text)
    return read(path, path.name, None, Limits(), path.read_bytes()[:8192])


def fold(text: str, width: int) -> str:
    lines = (line[at : at + width] for line in text.split("\n") for at in range(0, max(1, len(line)), width))
    return "\n".join(lines)


def fold_between_words(text: str, width: int) -> str:
    """As `fold -s` does: behind the last blank that fits, within a word that is too long."""
    lines = []
    for line in text.split("\n"):
        while len(line) > width:
            at = line.rfind(" ", 0, width) + 1 or width
            lines.append(line[:at])
            line = line[at:]
        lines.append(line)
    return "\n".join(lines)


def said(contents: Contents) -> list[object]:
    facts = [(fact.kind, fact.rank, fact.text, fact.fields) for fact in contents.facts]
    return [*facts, *((error.rank, error.type, error.message, error.frames) for error in contents.errors)]


@pytest.mark.parametrize("width", [72, 80, 100, 117, 120, 160])
def test_a_folded_log_says_the_same(tmp_path: Path, width: int) -> None:
    whole, folded = scanned(tmp_path / "a.log", LOG), scanned(tmp_path / "b.log", fold(LOG, width))
    assert said(folded) == said(whole) and len(said(whole)) > 9


@pytest.mark.parametrize("width", [72, 80, 100, 117, 120, 160])
def test_a_log_that_was_folded_between_words_says_the_same(tmp_path: Path, width: int) -> None:
    text = LOG.replace("/projects/pretraining/source/package", "")  # A shorter word than a path may be.
    folded = scanned(tmp_path / "b.log", fold_between_words(text, width))
    assert said(folded) == said(scanned(tmp_path / "a.log", text))


@pytest.mark.parametrize("folding", [fold, fold_between_words])
def test_lines_keep_their_numbers(tmp_path: Path, folding: Callable[[str, int], str]) -> None:
    text = folding(LOG, 80)
    number = 1 + text[: text.index("srun: error")].count("\n")
    assert [fact.line for fact in scanned(tmp_path / "a.log", text).facts if fact.kind == "srun_task"] == [number]


WHOLE = [
    "".join(
        f"[12:30:{n:02}] batch {n:05} of 90000, loss 1.2345, rate 0.00010, {n:05} samples a second\n" for n in range(60)
    ),
    "".join(
        f"batch {n:05} of 90000, loss 1.2345, rate 0.0001000, {n:05} samples a second, norm 1.0\n" for n in range(60)
    ),
    f"{'=' * 80}\ntrain.py FAILED\n{'-' * 80}\nFailures:\n{'=' * 80}\nroot cause below\n{'-' * 80}\nnothing\n",
    "| 0  NVIDIA H200  On | 00000000:19:00.0 Off | 0 | N/A 31C P0 77W / 700W | 4MiB |\nmore of it\n" * 20,
    "short\n" * 20,
    "".join(
        f"{line:130}\n" for line in ("  host      : a", "  rank      : 0 (local_rank: 0)", "  exitcode  : -11", "=")
    ),
    "".join(
        f"epoch {n} of 90, loss 1.2345, accuracy 0.{n:02}, learning rate 0.0001, {n} samples a second \n"
        for n in range(60)
    ),
    "",
]


@pytest.mark.parametrize("text", WHOLE)
def test_logs_whose_lines_are_whole_have_no_width(text: str) -> None:
    assert widths_of(text.encode()) == (0, 0)


def test_a_line_of_exactly_the_width_before_a_line_of_its_own_is_whole(tmp_path: Path) -> None:
    text = fold(LOG, 80) + f"[rank5]: {'x' * 71}\n" + fold(WATCHDOG.format(rank=5), 80)
    waits = [fact.rank for fact in scanned(tmp_path / "a.log", text).facts if fact.kind == "watchdog_timeout"]
    assert waits == [0, 1, 2, 3, 5]


@given(st.lists(st.text("ab1 [.", max_size=90), max_size=40), st.integers(60, 90), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_text_is_lost(lines: list[str], width: int, between_words: bool) -> None:
    reader = LineReader(Path("x"), Limits(), (b"zz",), lambda: True, None, (width - 60 * between_words, width))
    data = "".join(f"{line}\n" for line in lines).encode()
    result = [*reader._among(data, 1)]
    assert b"".join(text for _, text in result) == data.replace(b"\n", b"")
    assert [number for number, _ in result] == [*range(1, len(lines) + 1)]


def test_a_long_folded_log_takes_work_in_proportion_to_its_size(tmp_path: Path) -> None:
    def calls(lines: int) -> int:
        path = tmp_path / f"{lines}.log"
        path.write_text(fold(LOG, 80) + ("x" * 80 + "\n") * lines)
        head = path.read_bytes()[:8192]
        return calls_in(lambda: read(path, path.name, None, Limits(), head))[1]

    assert calls(80_000) < 5 * calls(20_000)


RUNTIMES: dict[str, Callable[[int], str]] = {
    "kubectl logs --timestamps": lambda n: f"2026-11-02T10:{n // 60 % 60:02}:{n % 60:02}.{n:09}Z ",
    "CRI": lambda n: f"2026-11-02T10:{n // 60 % 60:02}:{n % 60:02}.{n:09}+01:00 stderr F ",
    "journald": lambda n: f"Nov 02 10:{n // 60 % 60:02}:{n % 60:02} gpu-a-0 train[812]: ",
    "docker compose": lambda _: "trainer-1  | ",
    "kubectl logs --prefix": lambda _: "[pod/trainer-0/main] ",
}


@pytest.mark.parametrize("folding", [fold, fold_between_words])
@pytest.mark.parametrize("width", [80, 117, 120])
@pytest.mark.parametrize("runtime", [*RUNTIMES])
def test_a_folded_log_whose_pieces_a_runtime_stamped_says_the_same(
    tmp_path: Path, runtime: str, width: int, folding: Callable[[str, int], str]
) -> None:
    text = LOG.replace("/projects/pretraining/source/package", "")
    stamped = "".join(RUNTIMES[runtime](n) + line + "\n" for n, line in enumerate(folding(text, width).splitlines()))
    whole = "".join(RUNTIMES[runtime](n) + line + "\n" for n, line in enumerate(text.splitlines()))
    result, expected = (scanned(tmp_path / "a.log", each) for each in (stamped, whole))
    kept = [[(fact.kind, fact.rank, fact.fields) for fact in contents.facts] for contents in (result, expected)]
    assert kept[0] == kept[1] and len(kept[0]) > 8
    assert [(e.rank, e.type, e.frames) for e in result.errors] == [(e.rank, e.type, e.frames) for e in expected.errors]
    assert result.errors


@pytest.mark.parametrize("text", WHOLE)
@pytest.mark.parametrize("runtime", [*RUNTIMES])
def test_whole_lines_with_stamps_have_no_width(runtime: str, text: str) -> None:
    lines = "".join(RUNTIMES[runtime](n) + line + "\n" for n, line in enumerate(text.splitlines()))
    assert widths_of(lines.encode()) == (0, 0)


@pytest.mark.parametrize("quotes", [True, False])
def test_a_log_that_was_copied_out_of_a_page_says_the_same(tmp_path: Path, quotes: bool) -> None:
    text = LOG.replace("in train", "in <module>").replace("OutOfMemoryError: CUDA", "OutOfMemoryError: it's R&D; CUDA")
    escaped = html.escape(text, quote=quotes)
    assert "&lt;module&gt;" in escaped and "R&amp;D" in escaped
    assert said(scanned(tmp_path / "a.log", escaped)) == said(scanned(tmp_path / "b.log", text))
    assert said(scanned(tmp_path / "a.log", escaped.replace("&#x27;", "&#39;"))) == said(
        scanned(tmp_path / "b.log", text)
    )


def test_other_words_behind_an_ampersand_stay(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: a&b &copy; &lt &amplitude;\n'
    (error,) = scanned(tmp_path / "a.log", text).errors
    assert error.message == "a&b &copy; &lt &amplitude;"


@pytest.mark.parametrize("width", [78, 80, 100, 153, 160])
def test_a_timeout_that_was_wrapped_without_the_blanks_says_the_same(tmp_path: Path, width: int) -> None:
    record = (
        "[rank{0}]:[E1201 10:00:0{0}.0 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=812, OpType={1}, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) "
        "ran for 600021 milliseconds before timing out."
    )
    lines = [record.format(rank, op) for rank, op in enumerate(["ALLREDUCE", "ALLREDUCE", "BROADCAST", "ALLREDUCE"])]
    wrapped = "".join(textwrap.fill(line, width, break_long_words=False) + "\n" for line in lines)
    facts = scanned(tmp_path / "a.log", wrapped).facts
    assert [(fact.kind, fact.rank, fact.fields["op"], fact.fields["numel_in"]) for fact in facts] == [
        ("watchdog_timeout", rank, op, 1048576)
        for rank, op in enumerate(["ALLREDUCE", "ALLREDUCE", "BROADCAST", "ALLREDUCE"])
    ]
