"""Files of several jobs in one folder: refused in one line that names two of them, whatever kinds they are."""

import json
import shutil
from pathlib import Path

import pytest

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.trace import TraceFile
from tests.shared_data import shared_data

DAY_US = 86_400e6
NOW_US = 1_700_000_000e6


def trace(
    folder: Path, name: str, rank: int | None, pid: int, ts_us: float = NOW_US, base_ns: int | None = None
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "ts": ts_us, "dur": 5}
    head = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    head |= {} if base_ns is None else {"baseTimeNanoseconds": base_ns}
    (folder / name).write_text(json.dumps({**head, "traceEvents": [event, event]}))


def refused(folder: Path) -> str:
    with pytest.raises(DiagnosticsError) as error:
        gather(folder, Limits())
    assert "\n" not in str(error.value)
    return str(error.value)


def copy(folder: Path, name: str, only: range | None = None) -> None:
    for path in shared_data(name).iterdir():
        if path.is_file() and path.suffix not in (".md", ".log") and (only is None or int(path.name[6:]) in only):
            shutil.copy(path, folder / path.name)


def test_traces_and_dumps_years_apart(tmp_path: Path) -> None:
    copy(tmp_path, "traces/dlrm8_v100")
    copy(tmp_path, "flight/gloo/type")
    why = refused(tmp_path)
    assert "worker" in why and "tr_" in why and "days apart" in why


def test_two_halves_of_different_jobs(tmp_path: Path) -> None:
    copy(tmp_path, "flight/gpu_error_2nd", range(8))
    copy(tmp_path, "flight/lock_gil_1st", range(8, 16))
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert any("the dumps are of different jobs or times" in note for note in report.notes)


@pytest.mark.parametrize("name", ["traces/gpupuzzlers_sync"])
def test_traces_of_several_processes_of_rank_0(tmp_path: Path, name: str) -> None:
    copy(tmp_path, name)
    assert "both belong to rank 0, but come from processes" in refused(tmp_path)


def test_nsight_and_traces_years_apart(tmp_path: Path) -> None:
    copy(tmp_path, "traces/hta_sampled128")
    copy(tmp_path, "traces/nsys_2gpu_h100")
    why = refused(tmp_path)
    assert "rank0.json.gz and mfu_2gpu_before.sqlite (trace and Nsight export)" in why


@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_1st"])
def test_one_job_is_no_mixture(name: str) -> None:
    assert len(gather(shared_data(f"flight/{name}"), Limits()).handles(FlightFile)) == 16


def test_windows_of_one_process_may_be_days_apart(tmp_path: Path) -> None:
    trace(tmp_path, "rank0.a.json", 0, 70)
    trace(tmp_path, "rank0.b.json", 0, 70, NOW_US + 3 * DAY_US)
    trace(tmp_path, "rank1.json", 1, 71, NOW_US + 3 * DAY_US)
    assert gather(tmp_path, Limits()).handles(TraceFile)
    trace(tmp_path, "other.json", None, 99, NOW_US + 9 * DAY_US)
    assert "6 days apart" in refused(tmp_path)


def test_times_that_count_from_a_base_or_from_nothing_known(tmp_path: Path) -> None:
    base_ns = int(NOW_US * 1000)
    trace(tmp_path, "rank0.json", 0, 70, 4e6, base_ns)
    trace(tmp_path, "rank1.json", 1, 71, NOW_US + 5e6)
    trace(tmp_path, "x.json", None, 72, 12.5)  # counts from the start of a machine: nothing can be told
    assert len(gather(tmp_path, Limits()).handles(TraceFile)) == 3
    trace(tmp_path, "rank0b.json", 0, 73, 6e6, base_ns)
    both = "rank0.json and rank0b.json (trace) both belong to rank 0"
    assert f"{both}, but come from processes 70 and 73" in refused(tmp_path)
