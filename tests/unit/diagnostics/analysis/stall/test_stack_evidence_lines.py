"""Ranks that gave up in two different calls: where the program lies here, its text tells why the lines differ."""

import os
from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.report.model import Report

TIMED_OUT = "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation"
CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2466"
PROGRAM = """\
def save(step):
    dist.barrier()

for step in range(20):
    dist.all_reduce(a)
    if step % 5 == 0:
        save(step)
    if rank == 0:
        dist.broadcast(b, 0)
    else:
        dist.reduce(b, 0)
    dist.all_gather(c, a)
dist.barrier()
"""
LINES = {"all_reduce": 5, "save": 7, "broadcast": 9, "reduce": 11, "all_gather": 12, "barrier": 13}


def traceback(rank: int, program: Path, call: str, error: str) -> str:
    """As torch prints it for a rank that gave up in a call of the program."""
    frames = [(program, LINES[call], "<module>")]
    frames += [(program, 2, "save")] if call == "save" else []
    function = "barrier" if call == "save" else call
    frames += [(Path("/opt/site-packages/torch/distributed/distributed_c10d.py"), 5356, function)]
    lines = ["Traceback (most recent call last):"]
    lines += [f'  File "{file}", line {line}, in {name}' for file, line, name in frames]
    return "".join(f"[rank{rank}]: {line}\n" for line in [*lines, error])


def of(folder: Path, calls: list[str], errors: list[str], age_s: float = 10.0) -> Report:
    """Diagnose a log of ranks that gave up in these calls of a program that is older than it."""
    program, log = folder / "train.py", folder / "logs" / "job.log"
    log.parent.mkdir()
    program.write_text(PROGRAM)
    log.write_text(
        "".join(
            traceback(rank, program, call, error) for rank, (call, error) in enumerate(zip(calls, errors, strict=True))
        )
    )
    written_s = log.stat().st_mtime
    os.utime(program, (written_s - age_s, written_s - age_s))
    return diagnose(log)


@pytest.mark.parametrize(
    ("calls", "cause", "ranks"),
    [
        (["all_reduce", "barrier", "all_reduce"], "hang.uneven_iterations", (1,)),
        (["barrier", "all_reduce", "barrier"], "hang.uneven_iterations", (1,)),
        (["save", "all_reduce", "all_reduce"], "hang.conditional_collective", (0,)),
        (["save", "all_reduce", "save"], "hang.conditional_collective", (1,)),
        (["broadcast", "reduce", "reduce"], "hang.collective_mismatch", (0,)),
    ],
)
def test_the_text_tells_why_two_lines_differ(
    tmp_path: Path, calls: list[str], cause: str, ranks: tuple[int, ...]
) -> None:
    report = of(tmp_path, calls, [TIMED_OUT] * 3)
    (root,) = report.root_causes
    assert (root.cause, root.ranks, root.group) == (cause, ranks, None)
    assert 0.5 <= root.confidence <= 0.7, "nothing shows that both calls are of one group"
    assert {item.file for item in root.evidence} == {"job.log"} and "train.py" in text_of(root).summary


@pytest.mark.parametrize(
    ("calls", "errors", "age_s"),
    [
        (["all_reduce", "barrier", "all_reduce"], [TIMED_OUT] * 3, -60.0),  # The text is younger than the log.
        (["all_reduce", "barrier", "all_reduce"], [TIMED_OUT, CLOSED, TIMED_OUT], 10.0),  # It may have come later.
        (["all_reduce", "all_gather", "all_reduce"], [TIMED_OUT] * 3, 10.0),  # Either side may be a round ahead.
        (["all_reduce", "barrier", "save"], [TIMED_OUT] * 3, 10.0),
        (["save", "barrier", "barrier"], [TIMED_OUT] * 3, 10.0),  # Its call may have met others of its peers before.
    ],
)
def test_two_lines_alone_leave_it_open(tmp_path: Path, calls: list[str], errors: list[str], age_s: float) -> None:
    report = of(tmp_path, calls, errors, age_s)
    assert report.outcome != "healthy" and not report.root_causes


SKIPS = {
    "early return": "def log(step):\n    if {test}:\n        return\n    dist.all_reduce(a)\n"
    "for step in range(9):\n    log(step)\ndist.barrier()\n",
    "continue": "for step in range(9):\n    dist.barrier()\n    if {test}:\n        continue\n    dist.all_reduce(a)\n",
}
"""Programs of two ranks: one waits in `all_reduce`, the other, which skipped it, in `barrier`."""


def two_ranks(folder: Path, program: str) -> Report:
    """Diagnose a log in which rank 0 gave up in the last `all_reduce` of a program and rank 1 in its `barrier`."""
    path, lines = folder / "train.py", program.splitlines()
    path.write_text(program)
    os.utime(path, (1e9, 1e9))
    log = ""
    for rank, call in enumerate(("all_reduce", "barrier")):
        line = next(number for number, text in enumerate(lines, 1) if call in text)
        frames = [(path, line, "<module>")]
        if lines[0].startswith("def log") and call == "all_reduce":
            frames = [(path, next(n for n, text in enumerate(lines, 1) if "    log(" in text), "<module>")]
            frames += [(path, line, "log")]
        frames += [(Path("/opt/site-packages/torch/distributed/distributed_c10d.py"), 5356, call)]
        stack = [f'  File "{file}", line {number}, in {name}' for file, number, name in frames]
        log += "".join(f"[rank{rank}]: {text}\n" for text in ["Traceback (most recent call last):", *stack, TIMED_OUT])
    (folder / "job.log").write_text(log)
    return diagnose(folder / "job.log")


@pytest.mark.parametrize("test", ["step == 5 and rank == 1", "rank == 1", "loss > 3", "not is_main_process"])
@pytest.mark.parametrize("skip", SKIPS)
def test_the_rank_that_skipped_a_call_may_be_at_fault(tmp_path: Path, skip: str, test: str) -> None:
    report = two_ranks(tmp_path, SKIPS[skip].replace("{test}", test))
    if test == "not is_main_process":  # Only one rank reaches the call.
        assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.conditional_collective", (0,))]
    else:
        assert not report.root_causes
        assert "hang.conditional_collective" in {suspicion.cause for suspicion in report.suspicions}


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("    if rank == 0:\n        dist.all_reduce(a)\n", "hang.conditional_collective"),
        ("    if rank != 1:\n        dist.all_reduce(a)\n", None),
        (
            "    if loss > 3:\n        dist.all_reduce(a)\n    else:\n        dist.barrier()\n",
            "hang.collective_mismatch",
        ),
    ],
)
def test_branches_of_two_ranks(tmp_path: Path, body: str, cause: str | None) -> None:
    end = "" if "barrier" in body else "    dist.barrier()\n"
    report = two_ranks(tmp_path, f"for step in range(9):\n{body}{end}")
    assert [root.cause for root in report.root_causes] == ([cause] if cause else [])
