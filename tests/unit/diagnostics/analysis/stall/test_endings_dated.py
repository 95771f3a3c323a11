"""An exception without a time of its own came after the dated line above it, so it may be an effect of a long wait."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.report.model import Report
from tests.unit.diagnostics.hang.dumps import START_NS, Job, Op, write

STEP = [Op(line=10), Op("all_gather", 16, 20)]
RAISED = (
    "Traceback (most recent call last):",
    '  File "/job/fit.py", line 90, in <module>',
    '  File "/job/guard.py", line 4, in check',
    '    raise RuntimeError("no step for long")',
    "RuntimeError: no step for long",
)
FORMATS = {
    "logging": "%Y-%m-%d %H:%M:%S,120 INFO fit: ",
    "brackets": "[%Y-%m-%d %H:%M:%S,120] [INFO] ",
    "glog": "[W%m%d %H:%M:%S.120000 11 fit.cpp:5] ",
    "kubernetes": "%Y-%m-%dT%H:%M:%S.123456789Z ",
    "slashes": "%m/%d/%Y %H:%M:%S - INFO - ",
}


def stamp(after_s: float, form: str = FORMATS["logging"], zone_h: float = 0) -> str:
    return datetime.fromtimestamp(START_NS / 1e9 + after_s + 3600 * zone_h, UTC).strftime(form)


def log(prefix: str, form: str, zone_h: float, after_s: float, step: str = "step {} loss 2.0") -> str:
    """Steps until the wait begins at 0 s; a dated line `after_s` later, and an exception below it."""
    rows = [(-30 + 10 * number, step.format(number)) for number in range(3)] + [(after_s, "stopping")]
    lines = [stamp(at_s, form, zone_h) + text for at_s, text in rows]
    return "".join(f"{prefix}{line}\n" for line in (*lines, *RAISED))


def nobody_completes(folder: Path) -> None:
    write(folder, Job({rank: [*STEP, STEP[0]] for rank in range(4)}, nobody_completes=3))


def another_call(folder: Path) -> None:
    """Rank 1 is in another call than the others."""
    other = Op("all_gather", 16, 30)
    write(folder, Job({rank: [*STEP, other if rank == 1 else STEP[0]] for rank in range(4)}))


def roots(report: Report) -> list[tuple[str, tuple[int, ...]]]:
    return [(root.cause.removeprefix("hang."), root.ranks) for root in report.root_causes]


@pytest.mark.parametrize("after_s", [1, 600, 1800, 3600])
@pytest.mark.parametrize(
    ("prefix", "form", "zone_h"),
    [
        ("[rank1]: ", "logging", 0),
        ("[rank1]: ", "logging", 9),
        ("[rank1]: ", "slashes", -7),
        ("[default1]: ", "brackets", 5.5),
        ("[rank1]:", "glog", 2),
        ("[rank1]: ", "kubernetes", 0),
        ("1: ", "logging", 0),
    ],
)
@pytest.mark.parametrize("dumps", [nobody_completes, another_call])
def test_an_exception_long_after_the_own_wait_began_is_its_effect(
    tmp_path: Path, prefix: str, form: str, zone_h: float, after_s: float, dumps: Callable[[Path], None]
) -> None:
    dumps(tmp_path)
    (tmp_path / "job.log").write_text(log(prefix, FORMATS[form], zone_h, after_s))
    result = roots(diagnose(tmp_path))
    if after_s < 10:
        assert result == [("rank_raised", (1,))]
    else:
        assert result == ([("conditional_collective", (1,))] if dumps is another_call else [])


def test_an_unknown_zone_decides_nothing(tmp_path: Path) -> None:
    """The line above may be of hours before the wait."""
    nobody_completes(tmp_path)
    (tmp_path / "job.log").write_text(log("[rank1]: ", FORMATS["logging"], 0, 1800, step="loading part {}"))
    assert roots(diagnose(tmp_path)) == [("rank_raised", (1,))]


@pytest.mark.parametrize("message", ["CUDA error: an illegal memory access was encountered", "CUDA out of memory."])
def test_what_the_own_device_reports_may_be_why_nobody_completes(tmp_path: Path, message: str) -> None:
    nobody_completes(tmp_path)
    text = log("[rank1]: ", FORMATS["logging"], 0, 600).replace(RAISED[-1], f"RuntimeError: {message}")
    (tmp_path / "job.log").write_text(text)
    assert [ranks for _, ranks in roots(diagnose(tmp_path))] == [(1,)]


def elastic(folder: Path, rank: int, after_s: float) -> None:
    """The error file of a rank under torchrun."""
    about = {"py_callstack": "\n".join(RAISED), "timestamp": str(START_NS // 10**9 + int(after_s))}
    path = folder / "logs" / "attempt_0" / str(rank) / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"message": {"message": RAISED[-1], "extraInfo": about}}))


@pytest.mark.parametrize(
    ("ended", "after_s", "without", "culprits"),
    [
        (0, 1200, (0,), ("host_stall", (2,))),  # Others waited for rank 2, which is there and made no such call.
        (0, 1, (0,), ("rank_raised", (0,))),
        (2, 1200, (), ("rank_raised", (2,))),  # The one that they waited for.
        (0, 1200, (0, 2), ("rank_raised", (0,))),  # Whether rank 2 made the call is unknown.
    ],
)
def test_an_end_while_others_had_waited_for_yet_another_rank_is_an_effect(
    tmp_path: Path, ended: int, after_s: float, without: tuple[int, ...], culprits: tuple[str, tuple[int, ...]]
) -> None:
    write(tmp_path, Job({rank: STEP if rank == 2 else [*STEP, STEP[0]] for rank in range(4)}), without=without)
    elastic(tmp_path, ended, after_s)
    assert roots(diagnose(tmp_path))[:1] == [culprits]


@pytest.mark.parametrize("zone_h", [0, 9, -7])
@pytest.mark.parametrize("after_s", [1, 1200])
def test_a_launchers_time_is_of_some_zone(tmp_path: Path, zone_h: float, after_s: float) -> None:
    nobody_completes(tmp_path)
    time = stamp(after_s, "%Y-%m-%d_%H:%M:%S", zone_h)
    head = f"fit.py FAILED\nFailures:\n[0]:\n  time      : {time}\n  host      : n1\n"
    row = "  rank      : 1 (local_rank: 1)\n  exitcode  : 7 (pid: 4001)\n  error_file: <N/A>\n"
    (tmp_path / "job.log").write_text(head + row)
    result = roots(diagnose(tmp_path))
    assert result == ([] if after_s > 10 else [("rank_exited", (1,))])


TIMEOUT = (
    "[rank{0}]:[E{1} ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=57, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600008 milliseconds before "
    "timing out.\n"
)


@pytest.mark.parametrize(("at_s", "culprits"), [(700, []), (1, [("rank_raised", (2,))])])
def test_the_line_above_an_exception_may_be_later_than_the_others_timeouts(
    tmp_path: Path, at_s: float, culprits: list[tuple[str, tuple[int, ...]]]
) -> None:
    for rank in (0, 1, 3):
        text = TIMEOUT.format(rank, stamp(600 + rank, "%m%d %H:%M:%S.120000"))
        (tmp_path / f"rank_{rank}.log").write_text(f"{stamp(-10)}step 5 loss 2.0\n{text}")
    (tmp_path / "rank_2.log").write_text(f"{stamp(at_s)}stopping\n" + "".join(f"{line}\n" for line in RAISED))
    assert roots(diagnose(tmp_path)) == culprits


@pytest.mark.parametrize(("below_s", "both"), [(1, False), (400, True), (None, True)])
def test_of_two_exceptions_the_later_one_is_an_effect_if_the_lines_around_them_show_it(
    tmp_path: Path, below_s: float | None, both: bool
) -> None:
    first = [f"{stamp(0)}a", *RAISED[:-1], "KeyError: 'x'"] + ([f"{stamp(below_s)}b"] if below_s is not None else [])
    second = [f"{stamp(300)}c", *RAISED]
    lines = [*(f"[rank1]: {line}" for line in first), *(f"[rank3]: {line}" for line in second)]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    assert roots(diagnose(tmp_path)) == [("rank_raised", (1, 3) if both else (1,))]


def test_the_lines_around_a_traceback_date_it(tmp_path: Path) -> None:
    lines = [f"[rank{n}]: {stamp(at_s)}x" for n, at_s in ((1, 5), (0, 7), (1, 9), (0, 11))]
    lines += [f"[rank1]: {line}" for line in RAISED]
    lines += [f"[rank{n}]: {stamp(at_s)}x" for n, at_s in ((0, 12), (1, 14), (1, 16))]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    (error,) = gather(tmp_path, Limits()).errors
    assert (error.after_s // 1, error.before_s // 1) == (START_NS / 1e9 + 9, START_NS / 1e9 + 14)


def raised(rank: int, error: str, at: str) -> str:
    rows = ("Traceback (most recent call last):", '  File "/job/train.py", line 12, in <module>', error)
    return "".join(f"{at and f'2031-03-10 {at} '}[rank{rank}]: {row}\n" for row in rows)


@pytest.mark.parametrize(
    ("ends", "ranks", "first"),
    [
        ([(1, "KeyError: 1", "06:00:07"), (2, "ValueError: x", "06:00:05")], (1, 2), 2),
        ([(2, "ValueError: x", "06:00:05"), (1, "KeyError: 1", "06:00:07")], (1, 2), 2),
        ([(1, "KeyError: 1", "06:00:35"), (2, "ValueError: x", "06:00:05")], (2,), 2),  # An effect by then.
        ([(2, "ValueError: x", ""), (1, "KeyError: 1", "")], (1, 2), 2),  # Standard error is written at once.
        ([(1, "KeyError: 1", "06:00:05"), (2, "ValueError: x", "06:00:05")], (1, 2), 1),
        ([(1, "MemoryError", "06:00:07"), (2, "ValueError: x", "06:00:05")], (2,), 2),
        ([(1, "ValueError: x", "06:00:07"), (2, "MemoryError", "06:00:05")], (2,), 2),
    ],
)
def test_of_two_exceptions_the_first_in_time_is_told_first(
    tmp_path: Path, ends: list[tuple[int, str, str]], ranks: tuple[int, ...], first: int
) -> None:
    (tmp_path / "job.log").write_text("".join(raised(*end) for end in ends))
    root = diagnose(tmp_path).root_causes[0]
    assert root.ranks == ranks and text_of(root).summary.startswith(f"Rank {first} ")


def test_of_exceptions_without_dates_the_launcher_tells_which_it_saw_first(tmp_path: Path) -> None:
    listed = "  time      : 2031-03-10_06:00:09\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 77)\n"
    (tmp_path / "job.log").write_text(raised(2, "ValueError: x", "") + raised(1, "KeyError: 1", "") + listed)
    assert text_of(diagnose(tmp_path).root_causes[0]).summary.startswith("Rank 1 raised KeyError: 1")
