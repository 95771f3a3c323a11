"""A job is healthy only when its traces account for the time of its steps."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.analysis.step_profile.account import MOST, Account
from diagnostics.diagnose import diagnose
from diagnostics.report.overview import headline
from tests.shared_data import shared_data
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import ddp

GOOD = Account(0.9, 0.02, 0.01, 0.03, 4, 4, on_device=True, no_device_events=False)


@pytest.mark.parametrize("figure", ["exposed", "copies", "idle"])
def test_a_tenth_of_the_step_without_a_reason_is_not_healthy(figure: str) -> None:
    assert not GOOD.unaccounted
    assert not replace(GOOD, **{figure: 0.1}).unaccounted
    assert replace(GOOD, **{figure: 0.11}).unaccounted


def test_one_rank_does_not_speak_for_the_others() -> None:
    assert replace(GOOD, traced=1, world_size=8).unaccounted
    assert not replace(GOOD, traced=1, world_size=1).unaccounted


def test_some_ranks_do_not_speak_for_the_others() -> None:
    assert replace(GOOD, traced=2, world_size=128).unaccounted


@pytest.mark.parametrize(("kept", "size"), [((), 2), (("Group size",), 4)])
def test_the_groups_of_a_trace_say_that_there_are_other_ranks(tmp_path: Path, kept: tuple[str, ...], size: int) -> None:
    """A trace of torch before 2.2 or of a cut exporter does not say how many ranks the job has."""
    path = write(ddp(Simulator()), tmp_path)[0]
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace.pop("distributedInfo", None)
    for event in trace["traceEvents"]:
        group = [name for name in event.get("args", {}) if "Group" in name and name not in kept]
        event["args"] = {name: value for name, value in event.get("args", {}).items() if name not in group}
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "trace.json").write_text(json.dumps(trace))
    report = diagnose(tmp_path / "alone")
    assert report.measures["overlap"]["account"]["world_size"] == size
    assert report.outcome == "undecided" and f"1 of {size} ranks traced" in headline(report)


def test_on_cpu_transfer_is_work_and_only_waiting_and_stops_are_lost() -> None:
    on_cpu = replace(GOOD, on_device=False, exposed=0.38, idle=0.3)
    assert not replace(on_cpu, waiting=0.1, pauses=0.1).unaccounted
    assert replace(on_cpu, waiting=0.11).unaccounted and replace(on_cpu, pauses=0.11).unaccounted
    assert replace(on_cpu, exposed=0.52, waiting=0.0).unaccounted, "transfer takes more than half of the step"
    assert replace(on_cpu, pauses=0.15).unaccounted, "transfer and stops together do"
    assert replace(on_cpu, no_device_events=True).unaccounted


def gloo_rank(folder: Path, rank: int, *, late_us: int = 0, sleep_us: int = 0, loader: bool = False) -> None:
    """Write four steps: 10 ms of compute, an all_reduce of 10 ms after it (longer while it waits), 2 ms of Python."""
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, thread: int, start: float, length: float, **args: Any) -> None:
        where = {"ph": "X", "pid": 500 + rank, "tid": thread, "ts": start, "dur": length}
        events.append({"cat": cat, "name": name, **where, "args": args})

    for step in range(4):
        begin = 1e6 + step * 22_000 + step * (late_us + sleep_us)
        work = begin + sleep_us + (late_us if rank == 1 else 0)
        wait = late_us if rank == 0 else 0
        add("user_annotation", f"ProfilerStep#{step}", 1, begin, 22_000 + late_us + sleep_us)
        if loader:
            add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, begin, sleep_us)
        for piece in range(10):
            add("cpu_op", "aten::mm", 1, work + piece * 1_000, 1_000)
        add("user_annotation", "gloo:all_reduce", 2, work + 10_000, 10_000 + wait, **{"Input Dims": [[1 << 20]]})
        add("cpu_op", "aten::add_", 1, work + 20_500 + wait, 1_000)
    info = {"backend": "gloo", "rank": rank, "world_size": 2}
    (folder / f"rank_{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))


@pytest.mark.parametrize(
    ("rank_does", "outcome", "shown"),
    [
        ({}, "healthy", "exposed communication 45% of the step (0% waiting for other ranks)"),
        ({"late_us": 20_000}, "slow", "ranks wait for a late rank"),
        ({"late_us": 4_000}, "undecided", "15% waiting for other ranks"),
        ({"sleep_us": 20_000}, "undecided", "not accounted for"),
        ({"sleep_us": 20_000, "loader": True}, "slow", "the step waits for the data loader"),
        ({"sleep_us": 1_200}, "healthy", "no operation in "),
    ],
)
def test_a_gloo_job_is_healthy_when_its_ranks_compute_and_transfer(
    tmp_path: Path, rank_does: dict[str, Any], outcome: str, shown: str
) -> None:
    for rank in range(2):
        gloo_rank(tmp_path, rank, **rank_does)
    report = diagnose(tmp_path)
    assert (report.outcome, shown in headline(report)) == (outcome, True), headline(report)


def test_of_two_calls_in_flight_together_the_first_tells_why_a_rank_is_late(tmp_path: Path) -> None:
    """As with two buckets of DDP: before the second, longer one, no time is left in which the rank could stop."""
    for rank in range(2):
        events: list[dict[str, Any]] = []
        for step in range(3):
            begin, wait = 1e6 + step * 120_000, 0 if rank else 80_000
            work = begin + 80_000 - wait
            rows = [
                ("user_annotation", f"ProfilerStep#{step}", 1, begin, 120_000),
                ("cpu_op", "aten::mm", 1, work, 10_000),
                ("user_annotation", "gloo:all_reduce", 2, work + 5_000, 5_000 + wait),
                ("user_annotation", "gloo:all_reduce", 3, work + 6_000, 9_000 + wait),
                ("cpu_op", "aten::add_", 1, work + 16_000 + wait, 20_000),
            ]
            for cat, name, thread, start, length in rows:
                size = {"Input Dims": [[1 << (18 + thread)]]} if thread > 1 else {}
                events.append(
                    {
                        "ph": "X",
                        "cat": cat,
                        "name": name,
                        "pid": 1,
                        "tid": thread,
                        "ts": start,
                        "dur": length,
                        "args": size,
                    }
                )
        info = {"backend": "gloo", "rank": rank, "world_size": 2}
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    (cause,) = diagnose(tmp_path).root_causes
    assert (cause.cause, cause.ranks) == ("overlap.skew", (1,))
    assert "the others wait 75.0 ms" in str(cause.evidence[0].detail)


def test_a_warning_of_nccl_is_no_good_health(tmp_path: Path) -> None:
    write(ddp(Simulator()), tmp_path)
    assert diagnose(tmp_path).outcome == "healthy"
    warning = "node1:12:34 [0] NCCL WARN Missing cluster file of a plug-in\n"
    (tmp_path / "stderr.log").write_text(warning)
    assert diagnose(tmp_path).outcome == "undecided"


def test_a_healthy_report_shows_its_figures(tmp_path: Path) -> None:
    write(ddp(Simulator()), tmp_path)
    report = diagnose(tmp_path)
    assert report.outcome == "healthy"
    assert "idle " in headline(report) and "of the communication overlaps" in headline(report)


def test_one_traced_rank_of_four_is_undecided_with_the_figures(tmp_path: Path) -> None:
    write(ddp(Simulator()), tmp_path / "all")
    (tmp_path / "one").mkdir()
    (tmp_path / "all" / "rank0.json.gz").rename(tmp_path / "one" / "rank0.json.gz")
    report = diagnose(tmp_path / "one")
    assert report.outcome == "undecided"
    assert "1 of 4 ranks traced" in headline(report)


@pytest.mark.parametrize(
    ("name", "outcome", "figure"),
    [
        ("hta_cpu_only", "undecided", "exposed communication 85%"),
        ("hta_no_kernels", "undecided", "no device events"),
        ("hta_mtia_inference", "undecided", "idle 8%, by events whose meaning"),
        ("rocm_vllm_piecewise", "undecided", "idle 49%"),
        ("nsys_healthy_1pct", "healthy", "idle 1%"),
    ],
)
def test_real_traces_are_healthy_only_when_they_earn_it(name: str, outcome: str, figure: str) -> None:
    report = diagnose(shared_data(f"traces/{name}"))
    assert (report.outcome, report.root_causes) == (outcome, ())
    assert figure in headline(report)


def test_a_slow_job_shows_where_the_rest_of_the_time_goes() -> None:
    """One rank of eight: the confirmed cause costs 4% of a step, and 19% are exposed."""
    report = diagnose(shared_data("traces/hta_diff_control_a100"))
    assert report.outcome == "slow"
    assert any("exposed communication 19%" in note and "1 of 8 ranks traced" in note for note in report.notes)


def test_what_lies_before_the_first_kernel_of_a_marked_step_is_idle_too(tmp_path: Path) -> None:
    """A window of one step, in whose first half the host runs nothing that the trace shows."""
    sim = Simulator(ranks=1)
    with sim.marked("ProfilerStep#7"):
        sim.host(40_000.0)
        for _ in range(400):
            sim.kernel(100.0)
        for clock in sim.clocks:
            clock.host = clock.compute
    write(sim, tmp_path)
    report = diagnose(tmp_path)
    assert (report.outcome, "idle 50%" in headline(report)) == ("undecided", True), headline(report)


def test_a_second_device_of_one_process_must_work_too(tmp_path: Path) -> None:
    """As under `nn.DataParallel`: device 0 is always busy, device 1 half of the time."""
    events = []
    for n in range(200):
        link = {"correlation": 2 * n + 1}
        launch = {"ph": "X", "pid": 9, "tid": 9, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": link}
        events.append({**launch, "ts": 1000 + n, "dur": 1})
        for device, length in ((0, 100), (1, 50)):
            args = {"device": device, "stream": 7, "correlation": 2 * n + 1}
            kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": device, "tid": 7, "args": args}
            events.append({**kernel, "ts": 1005 + 100 * n, "dur": length})
    (tmp_path / "rank0.json").write_text(json.dumps({"deviceProperties": [{}], "traceEvents": events}))
    report = diagnose(tmp_path)
    assert report.outcome == "undecided"
    assert "idle 50% (the least busy of 2 devices)" in headline(report)


@pytest.mark.parametrize(
    ("runtime", "outcome"), [("cudaLaunchKernel", "undecided"), ("cudaDeviceSynchronize", "healthy")]
)
def test_launches_without_a_device_event_leave_the_step_unseen(tmp_path: Path, runtime: str, outcome: str) -> None:
    """As when CUPTI is refused; a profiler waits for the device once even where the job runs on CPU."""
    events = [
        {"ph": "X", "pid": 9, "tid": 9, "ts": 1000 + 100 * n + late, "dur": dur, "cat": cat, "name": name, "args": {}}
        for n in range(200)
        for late, dur, cat, name in [(0, 95, "cpu_op", "aten::linear"), (2, 5, "cuda_runtime", runtime)]
    ]
    (tmp_path / "rank0.json").write_text(json.dumps({"deviceProperties": [], "traceEvents": events}))
    report = diagnose(tmp_path)
    assert (report.outcome, "no device events" in headline(report)) == (outcome, outcome == "undecided")


def test_a_window_of_some_kernels_shows_no_step(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    for _ in range(3):
        sim.kernel(100.0)
    write(sim, tmp_path)
    report = diagnose(tmp_path)
    assert (report.outcome, "only 0.3 ms are in the traces" in headline(report)) == ("undecided", True)


def changed(folder: Path, rank: int, keep: Any) -> None:
    """Keep only the events of a rank's trace that `keep` accepts."""
    path = folder / f"rank{rank}.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace["traceEvents"] = [event for event in trace["traceEvents"] if keep(event)]
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))


def test_the_worst_rank_decides_not_the_median(tmp_path: Path) -> None:
    """Rank 3 lost a third of its kernels: its device is idle there, however busy the others are."""
    write(ddp(Simulator()), tmp_path)
    good = diagnose(tmp_path).measures["overlap"]["account"]["idle"]
    seen = [0]

    def keep(event: dict[str, Any]) -> bool:
        seen[0] += event.get("cat") == "kernel"
        return not (event.get("cat") == "kernel" and "nccl" not in event["name"] and seen[0] % 3 == 0)

    changed(tmp_path, 3, keep)
    report = diagnose(tmp_path)
    assert report.measures["overlap"]["account"]["idle"] > good + MOST and report.outcome != "healthy"


def test_a_rank_with_launches_and_without_device_events_is_not_traced(tmp_path: Path) -> None:
    write(ddp(Simulator()), tmp_path)
    changed(tmp_path, 2, lambda event: event.get("cat") != "kernel")
    report = diagnose(tmp_path)
    assert report.measures["overlap"]["account"]["traced"] == 3
    assert (report.outcome, "3 of 4 ranks traced" in headline(report)) == ("undecided", True), headline(report)
