import json
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest

from diagnostics.causes.overlap import pause
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import SUSPECTED, Finding, FormattedFacts, text_of
from diagnostics.evidence.trace.model import HostWork
from tests.shared_data import shared_data
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import LOADER, STEPS, by_step, ddp
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, roots, scenario, status


def said(finding: Finding) -> tuple[str, Any]:
    """Return the row that is said, and the idle time, if any."""
    assert isinstance(finding.facts, FormattedFacts)
    return finding.facts.figures["said"], finding.facts.figures.get("idle")


def test_a_pause_in_every_step_is_no_late_launch(tmp_path: Path, detect: Any) -> None:
    write(scenario("late_host").build(), tmp_path)
    texts = status(detect(tmp_path))
    assert (texts["overlap.pause"], texts["overlap.host_bound"]) == ("confirmed", "ruled_out")


def test_late_launches_all_over_the_step_are_no_pause(tmp_path: Path, detect: Any) -> None:
    write(scenario("slow_launches").build(), tmp_path)
    texts = status(detect(tmp_path))
    assert (texts["overlap.pause"], texts["overlap.host_bound"]) == ("ruled_out", "confirmed")


def test_a_pause_says_what_lies_in_it(tmp_path: Path, detect: Any) -> None:
    sim = Simulator()
    write(ddp(sim, per_step=lambda: sim.host(40000.0, "publish_metrics")), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.pause")
    assert finding.status == "confirmed"
    assert said(finding)[1].within == "publish_metrics"
    text = text_of(finding)
    assert "publish_metrics" in text.summary and "torch.compile" not in text.remedies[0].change


@pytest.mark.parametrize(
    ("what", "kind", "remedy"),
    [
        ({"mark": "Python GC"}, "garbage_collection", "gc.collect"),
        ({"function": "<built-in function collect>"}, "garbage_collection", "gc.collect"),
        ({"op": "_compile.compile_inner (dynamo_timed)"}, "recompilation", "mark_dynamic"),
        ({"function": "torch/_dynamo/convert_frame.py(1272): __call__"}, "recompilation", "mark_dynamic"),
        ({"call": "cudaMalloc"}, "allocator", "expandable_segments"),
        ({"call": "hipFree"}, "allocator", "expandable_segments"),
        ({"call": "cuLibraryLoadData"}, "kernel_loading", "CUDA_MODULE_LOADING"),
        ({"function": "torch/serialization.py(950): save"}, "checkpoint", "async_save"),
        ({"function": "queue.py(154): get"}, "input", "requests"),
        ({"function": "selectors.py(451): select"}, "input", "requests"),
        ({"function": "<built-in function sleep>"}, "sleep", "sleep"),
        ({"function": "http/client.py(1388): getresponse"}, "network", "thread of its own"),
        ({"function": "<method 'acquire' of '_thread.lock' objects>"}, "lock", "other thread"),
        ({"function": "torch/distributed/checkpoint/state_dict_saver.py(150): save"}, "checkpoint", "async_save"),
        ({"function": "<built-in function _cuda_emptyCache>"}, "allocator", "empty_cache"),
    ],
)
def test_the_kind_is_read_from_what_the_host_does(
    tmp_path: Path, detect: Any, what: dict[str, str], kind: str, remedy: str
) -> None:
    sim = Simulator()
    write(ddp(sim, per_step=lambda: sim.host(40000.0, **what)), tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == [("overlap.pause", (0, 1, 2, 3))]
    finding = finding_of(detection, "overlap.pause")
    assert said(finding)[0] == said(finding)[1].work == kind
    assert remedy in text_of(finding).remedies[0].change


OWN, LOG = "train.py(9): report", "wandb/sdk/run.py(7): log"


def nested(sim: Simulator, *functions: str, lead_us: float = 0.0, thread: int | None = None) -> None:
    """Functions that call one another, outermost first; the innermost runs for 40 ms, each other one a bit longer."""
    main, starts = sim.thread, [clock.host for clock in sim.clocks]
    sim.thread = main if thread is None else thread
    for n, name in enumerate(functions):
        for clock, start in zip(sim.clocks, starts):
            clock.host = start - (lead_us if n == 0 else 0.0)
        sim.host(40_000.0 + 10.0 * (len(functions) - n) + (lead_us if n == 0 else 0.0), function=name)
    sim.thread = main
    for clock, start in zip(sim.clocks, starts):
        clock.host = start + (40_000.0 if thread is None else 0.0)


@pytest.mark.parametrize(
    ("functions", "lead_us", "row", "within", "caller"),
    [
        ((OWN, "<built-in function sleep>"), 0.0, "sleep", "<built-in function sleep>", OWN),
        ((OWN, LOG, "http/client.py(5): send", "ssl.py(7): send"), 0.0, "network", LOG, OWN),
        ((OWN, "pandas/io/csv.py(3): to_csv"), 0.0, "within", "pandas/io/csv.py(3): to_csv", OWN),
        ((OWN,), 0.0, "within", OWN, OWN),
        # It also does the work of the step, so that it is not what the pause is; its code is.
        (("train.py(3): train_step",), 60_000.0, "code", "", "train.py(3): train_step"),
    ],
)  # fmt: skip
def test_a_function_in_the_stacks_names_the_pause(
    tmp_path: Path, detect: Any, functions: tuple[str, ...], lead_us: float, row: str, within: str, caller: str
) -> None:
    sim = Simulator()
    write(ddp(sim, per_step=lambda: nested(sim, *functions, lead_us=lead_us)), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.pause")
    assert (finding.status, *said(finding)[:1]) == ("confirmed", row)
    assert (said(finding)[1].within, said(finding)[1].caller) == (within, caller)
    summary = text_of(finding).summary
    assert caller in summary and (f"called in {caller}" in summary) == (row != "code")


@pytest.mark.parametrize(
    "name",
    ["<method 'acquire' of '_thread.lock' objects>", "tensorboard/writer.py(9): run", "<built-in function sleep>"],
)
def test_functions_of_threads_that_launch_nothing_name_no_pause(tmp_path: Path, detect: Any, name: str) -> None:
    sim = Simulator()

    def idle() -> None:
        nested(sim, "own.py(1): watch", name, thread=99)
        sim.host(40_000.0)

    write(ddp(sim, per_step=idle), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.pause")
    assert (finding.status, said(finding)[0]) == ("confirmed", "unknown")


def test_many_short_allocations_are_no_late_launches(tmp_path: Path, detect: Any) -> None:
    """None of them is long, and together they cost more than half of the step."""
    sim = Simulator()

    def allocate() -> None:
        for _ in range(100):
            sim.kernel(20.0)
            sim.host(250.0, call="cudaMalloc")
            sim.kernel(20.0)

    write(ddp(sim, per_step=allocate), tmp_path)
    finding = finding_of(detection := detect(tmp_path), "overlap.pause")
    assert (finding.status, said(finding)[0]) == ("confirmed", "allocator")
    assert status(detection)["overlap.host_bound"] == "ruled_out"


def test_what_another_thread_waits_for_is_no_reason(tmp_path: Path, detect: Any) -> None:
    """A side thread stands in `queue.get` for ever; that is not why the thread that launches does nothing."""
    sim = Simulator()

    def idle_beside_a_side_thread() -> None:
        main, sim.thread = sim.thread, 99
        start = [clock.host for clock in sim.clocks]
        sim.host(40000.0, function="queue.py(154): get")
        sim.thread = main
        for clock, before in zip(sim.clocks, start):
            clock.host = before
        sim.host(40000.0)

    write(ddp(sim, per_step=idle_beside_a_side_thread), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.pause")
    assert (finding.status, said(finding)[1].work) == ("confirmed", "")


@pytest.mark.parametrize("mark", [{"mark": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"},
                                  {"op": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"},
                                  {"function": "torch/utils/data/dataloader.py(701): __next__"},
                                  {"mark": "## wait_for_batch ##"}])  # fmt: skip
def test_a_loader_is_waited_for_however_the_profiler_shows_it(
    tmp_path: Path, detect: Any, mark: dict[str, str]
) -> None:
    sim = Simulator()
    write(ddp(sim, per_step=lambda: sim.host(40000.0, **mark)), tmp_path)
    assert roots(detect(tmp_path)) == [("overlap.data_bound", (0, 1, 2, 3))]


def test_of_a_real_trace_whose_loader_has_no_workers_the_loader_is_the_cause(detect: Any) -> None:
    """287 of 393 idle ms lie inside `__next__`, in six steps of which the first two have no gap in front."""
    result = detect(shared_data("traces/kineto_loader_w0"))
    assert roots(result)[0] == ("overlap.data_bound", (0,))
    idle = result.measures["overlap"]["ranks"][0]["idle_by_reason_ms"]
    assert idle["data"] == pytest.approx(287 + 68, abs=5), "and 68 ms before the first work of the first step"
    assert status(result)["overlap.host_bound"] == status(result)["overlap.pause"] == "ruled_out"


def test_a_launch_that_takes_milliseconds_loads_its_kernel(tmp_path: Path, detect: Any) -> None:
    """ROCm and CUDA load a kernel when it is launched first; the call of the launch then takes that long."""
    sim, shapes = Simulator(), count()

    def load() -> None:
        sim.launch_us = 100_000.0
        sim.kernel(20.0, f"kernel_of_shape_{next(shapes)}")
        sim.launch_us = 8.0
        for clock in sim.clocks:  # the host continues when the call returns
            clock.host -= 0.4 * 100_000.0

    write(ddp(sim, per_step=load), tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == [("overlap.pause", (0, 1, 2, 3))]
    assert said(finding_of(detection, "overlap.pause"))[0] == "kernel_loading"


def test_a_real_trace_of_the_first_steps_loads_kernels(detect: Any) -> None:
    """6.5 ms of a gap of 6.6 ms lie inside one hipLaunchKernel."""
    finding = finding_of(detect(shared_data("traces/rocm_mi250_minitoy")), "overlap.pause")
    assert (finding.status, said(finding)[0]) == ("confirmed", "kernel_loading")


def test_every_kind_of_work_has_a_purpose_a_change_and_a_reason() -> None:
    rows = table_beside(pause.__file__)["texts"]
    kinds = set(get_args(HostWork)) - {"", "data", "profiler"}
    assert set(rows) == kinds | {"within", "code", "called", "unknown", "shown", "on_cpu", "once"}
    assert all(rows[kind]["remedies"] and "{idle.within}" in rows[kind]["summary"] for kind in kinds)


@pytest.mark.parametrize(
    ("name", "gc_ms", "expected"), [("Python GC", 25, True), ("Python GC", 5, False), ("mine", 25, False)]
)
def test_on_cpu_a_pause_counts_where_the_trace_names_it(
    tmp_path: Path, detect: Any, name: str, gc_ms: int, expected: bool
) -> None:
    events = []
    for step in range(3):
        start = 100_000 * step
        for kind, label, at_ms, length_ms in (
            ("user_annotation", f"ProfilerStep#{step}", 0, 100), ("cpu_op", "aten::mm", 0, 100 - gc_ms),
            ("user_annotation", name, 100 - gc_ms, gc_ms),
        ):  # fmt: skip
            times = {"ts": start + 1000 * at_ms, "dur": 1000 * length_ms}
            events.append({"ph": "X", "cat": kind, "name": label, "pid": 1, "tid": 1, **times, "args": {}})
    header = {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 1}}
    (tmp_path / "rank0.json").write_text(json.dumps({**header, "traceEvents": events}))
    finding = finding_of(detect(tmp_path), "overlap.pause")
    assert finding.status == ("confirmed" if expected else "ruled_out")
    assert not expected or (said(finding)[0] == "garbage_collection" and finding.cost is not None)


@pytest.mark.parametrize("mark", ["Python GC", "publish_metrics", ""])
@pytest.mark.parametrize(("share", "expected"), [(0.06, "ruled_out"), (0.09, "ruled_out"), (0.15, "confirmed")])
def test_a_pause_that_a_healthy_job_may_have_is_a_figure_and_no_cause(
    tmp_path: Path, detect: Any, mark: str, share: float, expected: str
) -> None:
    sim = Simulator()
    step_us = 12 * 9000.0 + 300.0

    def stop() -> None:
        sim.drain()
        sim.host(step_us * share / (1 - share), mark)

    write(ddp(sim, scale=lambda rank: 10.0, per_step=stop), tmp_path)
    finding = finding_of(detection := detect(tmp_path), "overlap.pause")
    assert finding.status == expected, text_of(finding)
    measures = detection.measures["overlap"]["ranks"][0]
    assert measures["idle_by_reason_ms"]["pause"] > share * 2 * step_us / 1000


@pytest.mark.parametrize(("share", "expected"), [(0.05, "ruled_out"), (0.4, "confirmed")])
def test_one_pause_in_several_steps_is_suspected_if_it_takes_much_of_their_time(
    tmp_path: Path, detect: Any, share: float, expected: str
) -> None:
    sim, steps = Simulator(), count()

    def stop_once() -> None:
        if next(steps) == 1:
            sim.drain()
            sim.host(STEPS * (12 * 9000.0 + 300.0) * share / (1 - share), "Python GC")

    write(ddp(sim, scale=lambda rank: 10.0, per_step=stop_once), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.pause")
    assert finding.status == expected
    if expected == "confirmed":
        assert finding.confidence == SUSPECTED and "gc.collect" in text_of(finding).remedies[0].change


def answered(sim: Simulator, wait: Callable[[], None]) -> None:
    """Ten requests a step: the device works for 10 ms on each, then the host waits for the next one."""
    for _ in range(10):
        for _ in range(20):
            sim.kernel(500.0)
        sim.drain()
        wait()


def test_equal_gaps_spread_evenly_are_what_the_host_does_in_them(tmp_path: Path, detect: Any) -> None:
    sims = [Simulator(ranks=1) for _ in range(3)]

    def launches() -> None:
        for _ in range(100):
            sims[2].host(80.0, op="aten::empty")
            sims[2].kernel(2.0)
            sims[2].host(20.0)

    waits = (lambda: sims[0].host(10_000.0), lambda: sims[1].host(10_000.0, LOADER), launches)
    for sim, wait, cause in zip(sims, waits, ("pause", "data_bound", "host_bound"), strict=True):
        write(by_step(sim, partial(answered, sim, wait)), tmp_path / cause)
        assert roots(detect(tmp_path / cause)) == [(f"overlap.{cause}", (0,))]


@pytest.mark.parametrize("at", ["first", "middle", "last"])
@pytest.mark.parametrize(
    ("what", "cause", "row"),
    [
        ({"mark": "Python GC"}, "overlap.pause", "garbage_collection"),
        ({"call": "cudaMalloc"}, "overlap.pause", "allocator"),
        ({"op": "_compile.compile_inner (dynamo_timed)"}, "overlap.pause", "recompilation"),
        ({"mark": LOADER}, "overlap.data_bound", "default"),
        ({"mark": "publish_metrics"}, "overlap.pause", "within"),
        ({"op": "aten::sort"}, "overlap.pause", "within"),
        ({}, "", "once"),
    ],
)
def test_a_pause_of_the_only_step_counts_if_the_trace_names_it(
    tmp_path: Path, detect: Any, at: str, what: dict[str, str], cause: str, row: str
) -> None:
    sim = Simulator(ranks=1)
    with sim.marked("ProfilerStep#5"):
        for place in ("first", "middle", "last"):
            if place == at:
                sim.host(300_000.0, **what)
            if place != "last":
                for _ in range(40):
                    sim.kernel(500.0)
                sim.drain("aten::mean")
    write(sim, tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == ([(cause, (0,))] if cause else [])
    finding = finding_of(detection, cause or "overlap.pause")
    assert (finding.status, said(finding)[0]) == ("confirmed" if cause else "undecided", row)
    assert "300" in text_of(finding).summary


def test_what_ran_before_the_trace_began_is_no_pause(tmp_path: Path, detect: Any) -> None:
    """The host runs ahead: what it launches first waits for work that was launched before."""
    sim = Simulator(ranks=1)
    sim.clocks[0].compute = 200_000.0
    with sim.marked("ProfilerStep#5"):
        for _ in range(400):
            sim.kernel(500.0)
    write(sim, tmp_path)
    texts = status(detect(tmp_path))
    assert texts["overlap.pause"] == texts["overlap.host_bound"] == "ruled_out"


@pytest.mark.parametrize(("thread", "expected"), [(1, "confirmed"), (9, "ruled_out")])
def test_on_cpu_only_threads_that_compute_pause(tmp_path: Path, detect: Any, thread: int, expected: str) -> None:
    """A writer that waits in `queue.get` beside a host that does so is no pause."""
    events = []
    for step in range(3):
        for kind, label, at_us, length_us, tid in (
            ("user_annotation", f"ProfilerStep#{step}", 0, 100_000, 1), ("cpu_op", "aten::mm", 0, 60_000, 1),
            ("python_function", OWN, 60_000, 40_000, 1),
            ("python_function", "queue.py(154): get", 60_001, 39_998, thread),
        ):  # fmt: skip
            times = {"ts": 100_000 * step + at_us, "dur": length_us}
            events.append({"ph": "X", "cat": kind, "name": label, "pid": 1, "tid": tid, **times, "args": {}})
    header = {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 1}}
    (tmp_path / "rank0.json").write_text(json.dumps({**header, "traceEvents": events}))
    finding = finding_of(detect(tmp_path), "overlap.pause")
    assert finding.status == expected
    assert expected == "ruled_out" or (said(finding)[0], said(finding)[1].caller) == ("input", OWN)
