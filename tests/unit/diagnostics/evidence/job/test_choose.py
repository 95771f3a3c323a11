"""Several files of one rank: which one counts, and when they are of several jobs."""

import json
import os
import shutil
from pathlib import Path

import pytest

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.formatting import Phrase
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.choose import JOB_S, WINDOWS_S, one_per_rank, refuse_mixed
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.reader import Contents, Handle, Reader
from tests.unit.diagnostics.hang.dumps import Job, Op, set_clock, write

NOW_S = 1_700_000_000.0


class Dump(Handle, frozen=True):
    """A file of no meaning but its size."""

    kind = "dump"


def reader(contradicts: bool = False) -> Reader:
    why = Phrase("why", "one says {count} and the other 3", {"count": 2}) if contradicts else None
    return Reader("dump", lambda head: True, lambda source: Contents(""), contradiction=lambda mine, other: why)


def written(root: Path, files: dict[str, tuple[int | None, bytes]]) -> list[Dump]:
    handles = []
    for name, (rank, content) in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        handles.append(Dump(path, name, rank, Limits()))
    return handles


def test_the_largest_file_of_a_rank_counts_and_the_others_are_named(tmp_path: Path) -> None:
    evidence = Evidence(tmp_path, Limits())
    files = {"a_0": (0, b"x"), "b_0": (0, b"xx"), "c_0": (0, b"xx"), "a_1": (1, b"y"), "none": (None, b"z")}
    chosen = one_per_rank(reader(), written(tmp_path, files), evidence)
    assert [handle.file for handle in chosen] == ["none", "b_0", "a_1"]
    (problem,) = evidence.problems
    assert problem.figures == {"rank": 0, "count": 2, "used": "b_0", "others": ["a_0"]}, "c_0 is a copy of b_0"


def test_the_choice_does_not_depend_on_the_order_in_which_files_are_found(tmp_path: Path) -> None:
    handles = written(tmp_path, {f"{n}_0": (0, bytes([n, n])) for n in range(5)})
    first = one_per_rank(reader(), handles, Evidence(tmp_path, Limits()))
    assert one_per_rank(reader(), handles[::-1], Evidence(tmp_path, Limits())) == first


def test_files_that_contradict_each_other_are_of_two_jobs(tmp_path: Path) -> None:
    handles = written(tmp_path, {"a_0": (0, b"x"), "b_0": (0, b"xy")})
    with pytest.raises(DiagnosticsError, match=r"files of 2 jobs: a_0 and b_0 both belong to rank 0, and one says 2"):
        one_per_rank(reader(contradicts=True), handles, Evidence(tmp_path, Limits()))
    copies = written(tmp_path, {"c_1": (1, b"x"), "d_1": (1, b"x")})
    assert len(one_per_rank(reader(contradicts=True), copies, Evidence(tmp_path, Limits()))) == 1, "copies cannot"


def test_two_folders_with_the_same_ranks_are_not_mixed(tmp_path: Path) -> None:
    files = {f"{folder}/{rank}": (rank, f"{folder}{rank}".encode()) for folder in "ab" for rank in range(2)}
    with pytest.raises(DiagnosticsError, match=r"2 folders hold dump files of the same ranks \(a, b\)"):
        one_per_rank(reader(), written(tmp_path, files), Evidence(tmp_path, Limits()))
    single = {name: file for name, file in files.items() if name != "b/1"}
    assert len(one_per_rank(reader(), written(tmp_path, single), Evidence(tmp_path, Limits()))) == 2


def trace(root: Path, name: str, at_s: float, rank: int, pid: int) -> Dump:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": pid, "tid": 1, "ts": at_s * 1e6, "dur": 1}
    content = {"distributedInfo": {"rank": rank}, "traceEvents": [event]}
    return written(root, {name: (rank, json.dumps(content).encode())})[0]


@pytest.mark.parametrize(
    ("later_s", "pid", "why"),
    [
        (60.0, 1, ""),
        (WINDOWS_S + 60, 1, ""),
        (60.0, 2, "both belong to rank 0, but come from processes 1 and 2"),
        (JOB_S + 60, 1, "were recorded 90 days apart"),
    ],
)
def test_windows_of_one_rank_are_of_one_process(tmp_path: Path, later_s: float, pid: int, why: str) -> None:
    traces = [trace(tmp_path, "a.json", NOW_S, 0, 1), trace(tmp_path, "b.json", NOW_S + later_s, 0, pid)]
    evidence = Evidence(tmp_path, Limits())
    if not why:
        refuse_mixed(evidence, traces, [])
        return
    with pytest.raises(DiagnosticsError, match=why):
        refuse_mixed(evidence, traces, [])


def test_windows_days_apart_need_a_common_process_and_dumps_need_not_be_near(tmp_path: Path) -> None:
    evidence = Evidence(tmp_path, Limits())
    apart = [trace(tmp_path, "a.json", NOW_S, 0, 1), trace(tmp_path, "b.json", NOW_S + 2 * WINDOWS_S, 1, 2)]
    with pytest.raises(DiagnosticsError, match=r"a\.json and b\.json \(trace\) were recorded 2 days apart"):
        refuse_mixed(evidence, apart, [])
    refuse_mixed(evidence, apart[:1], [("flight_0", NOW_S + 2 * WINDOWS_S)])
    with pytest.raises(DiagnosticsError, match="trace and flight dump"):
        refuse_mixed(evidence, apart[:1], [("flight_0", NOW_S + 2 * JOB_S)])
    refuse_mixed(evidence, [trace(tmp_path, "c.json", 5.0, 0, 3), *apart[:1]], []), "a clock since the boot"


@pytest.mark.parametrize("shift_ns", [123_457, 0])
@pytest.mark.parametrize(("original", "copy"), [(1, 3), (2, 1)])
def test_a_copy_of_another_ranks_dump_is_no_evidence(tmp_path: Path, shift_ns: int, original: int, copy: int) -> None:
    """No two ranks make their calls at equal nanoseconds, except those of a simulation."""
    step = [Op(line=10), Op("all_gather", 16, 20)]
    write(tmp_path, Job({rank: step if rank == 2 else [*step, step[0]] for rank in range(4)}))
    for rank in range(4):
        set_clock(tmp_path, (rank,), shift_ns * (1 + rank) / 1e9)
        os.utime(tmp_path / f"tr_{rank}", (1e9, 1e9))
    shutil.copy(tmp_path / f"tr_{original}", tmp_path / f"tr_{copy}")
    report = diagnose(tmp_path)
    notes = [problem for entry in report.coverage for problem in entry.problems if "byte for byte" in str(problem)]
    assert len(notes) == bool(shift_ns)
    if shift_ns:
        assert f"not for rank {copy}" in str(notes[0])
        assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.host_stall", (2,))]
