"""Jobs for the trace generator, each with the root cause that its traces must be diagnosed with, and healthy ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.trace_generator import AUTOGRAD, MAIN, Per, Simulator

LAYERS = 12
FORWARD_US, BACKWARD_US = 300.0, 600.0
MIB = 1 << 20
STEPS = 3
LATE = 2
"""The rank that is late, where one is."""


@dataclass(frozen=True)
class Scenario:
    """A job and its truth."""

    name: str
    build: Callable[[], Simulator]
    cause: str = ""
    """Empty = healthy."""
    ranks: tuple[int, ...] = (0, 1, 2, 3)


@contextmanager
def marked(sim: Simulator, name: str) -> Iterator[None]:
    sim.mark(name)
    yield
    sim.unmark()


def forward(sim: Simulator, scale: Per = lambda rank: 1.0, after_layer: Callable[[int], None] | None = None) -> None:
    for layer in range(LAYERS):
        sim.kernel(lambda rank: FORWARD_US * scale(rank))
        if after_layer:
            after_layer(layer)


def backward(sim: Simulator, scale: Per = lambda rank: 1.0, after_layer: Callable[[int], None] | None = None) -> None:
    sim.thread = AUTOGRAD
    for layer in range(LAYERS):
        sim.kernel(lambda rank: BACKWARD_US * scale(rank))
        if after_layer:
            after_layer(layer)
    sim.thread = MAIN


def optimizer(sim: Simulator) -> None:
    with marked(sim, "Optimizer.step#AdamW.step"):
        for _ in range(3):
            sim.kernel(100.0, "multi_tensor_apply_kernel")


def ddp(
    sim: Simulator,
    *,
    buckets: int = 4,
    size: int = 100 * MIB,
    transfer: float = 3000.0,
    micros: int = 1,
    same_stream: bool = False,
    scale: Per = lambda rank: 1.0,
    sync: Callable[[int], bool] = lambda micro: True,
    per_step: Callable[[], None] | None = None,
) -> Simulator:
    """Data parallelism: gradients are reduced in buckets during backward."""
    for step in range(STEPS):
        with marked(sim, f"ProfilerStep#{step + 5}"):
            if per_step:
                per_step()
            for micro in range(micros):
                with marked(sim, "DistributedDataParallel.forward"):
                    forward(sim, scale)
                ends: list[list[float]] = []

                def reduce(layer: int, ends: list[list[float]] = ends, micro: int = micro) -> None:
                    due = (layer + 1) * buckets // LAYERS - layer * buckets // LAYERS
                    for _ in range(due if sync(micro) else 0):
                        ends.append(
                            sim.collective("all_reduce", size // buckets, transfer / buckets, same_stream=same_stream)
                        )

                backward(sim, scale, reduce)
                for end in ends:
                    sim.wait(end)
            optimizer(sim)
    return sim


def fsdp(
    *, units: int = LAYERS, size: int = 400 * MIB, transfer: float = 3000.0, prefetch: bool = True, work: float = 1.0
) -> Simulator:
    """Fully sharded: units are gathered before they compute, gradients scattered after."""
    sim = Simulator()
    for step in range(STEPS):
        with marked(sim, f"ProfilerStep#{step}"):
            for kernel_us, thread in ((FORWARD_US, MAIN), (BACKWARD_US, AUTOGRAD)):
                sim.thread = thread
                per_unit = work * kernel_us * LAYERS / units
                ahead = sim.collective("all_gather", size // units, transfer / units)
                for unit in range(units):
                    sim.wait(ahead)
                    following = unit + 1 < units
                    if following and prefetch:
                        before = [clock.compute for clock in sim.clocks]
                        for clock in sim.clocks:  # a gather needs no result of compute
                            clock.compute = 0.0
                        ahead = sim.collective("all_gather", size // units, transfer / units)
                        for clock, compute in zip(sim.clocks, before):
                            clock.compute = compute
                    sim.kernel(per_unit)
                    if following and not prefetch:
                        ahead = sim.collective("all_gather", size // units, transfer / units)
                    if thread == AUTOGRAD:
                        last = sim.collective("reduce_scatter", size // units, transfer / units)
            sim.thread = MAIN
            sim.wait(last)
            optimizer(sim)
    return sim


def unbucketed() -> Simulator:
    sim = Simulator()
    for step in range(STEPS):
        with marked(sim, f"ProfilerStep#{step}"):
            forward(sim)
            backward(sim)
            for _ in range(2 * LAYERS):
                sim.wait(sim.collective("all_reduce", 4 * MIB, 200.0))
            optimizer(sim)
    return sim


def tensor_parallel() -> Simulator:
    sim = Simulator()
    for step in range(STEPS):
        with marked(sim, f"ProfilerStep#{step}"):

            def inline(layer: int) -> None:
                if layer < LAYERS - 1:
                    sim.wait(sim.collective("all_reduce", 16 * MIB, 120.0))

            forward(sim, after_layer=inline)
            backward(sim, after_layer=inline)
            optimizer(sim)
    return sim


def find_unused() -> Simulator:
    sim = Simulator()
    for step in range(STEPS):
        with marked(sim, f"ProfilerStep#{step}"):
            with marked(sim, "DistributedDataParallel.forward"):
                forward(sim)
                sim.host(6000.0, op="torch.distributed.ddp.reducer::search_unused_parameters")
            ends = []
            backward(sim, after_layer=lambda layer, ends=ends: ends.append(  # type: ignore[misc]
                sim.collective("all_reduce", 25 * MIB, 700.0)) if layer % 3 == 2 else None)  # fmt: skip
            ends.append(sim.collective("all_reduce", 4 * 1000, 40.0, dtype="Int"))
            for end in ends:
                sim.wait(end)
            optimizer(sim)
    return sim


def sync_point() -> Simulator:
    sim = Simulator()

    def item(layer: int) -> None:
        if layer % 2:
            sim.drain()
            sim.host(250.0)

    for step in range(STEPS):
        with marked(sim, f"ProfilerStep#{step}"):
            forward(sim, after_layer=item)
            ends = []
            backward(sim, after_layer=lambda layer, ends=ends: ends.append(  # type: ignore[misc]
                sim.collective("all_reduce", 25 * MIB, 700.0)) if layer % 3 == 2 else None)  # fmt: skip
            for end in ends:
                sim.wait(end)
            optimizer(sim)
    return sim


def paced(late_us: Per, mark: str) -> Simulator:
    """The host waits for the device once a step, then does something else first."""
    sim = Simulator()

    def before() -> None:
        sim.host(late_us, mark)

    return ddp(sim, per_step=before)


def only_late(duration: float) -> Per:
    return lambda rank: duration if rank == LATE else 1.0


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
SCENARIOS = (
    Scenario("ddp", lambda: ddp(Simulator())),
    Scenario("ddp, no_sync", lambda: ddp(Simulator(), micros=4, sync=lambda micro: micro == 3)),
    Scenario("ddp, small model", lambda: ddp(Simulator(), buckets=2, size=3 * MIB, transfer=300.0)),
    Scenario("ddp, jitter", lambda: ddp(Simulator(), scale=lambda rank: 1 + 0.003 * rank)),
    Scenario("fsdp", lambda: fsdp()),
    Scenario("fsdp, few units", lambda: fsdp(units=6)),
    Scenario("accumulation", lambda: ddp(Simulator(), micros=4, transfer=12000.0), "overlap.accumulation_sync"),
    Scenario("one bucket", lambda: ddp(Simulator(), buckets=1, transfer=6000.0), "overlap.single_bucket"),
    Scenario(
        "tiny buckets", lambda: ddp(Simulator(), buckets=120, size=12 * MIB, transfer=20000.0), "overlap.small_buckets"
    ),
    Scenario("one by one", unbucketed, "overlap.unbucketed"),
    Scenario("same stream", lambda: ddp(Simulator(), same_stream=True, transfer=4000.0), "overlap.same_stream"),
    Scenario("tensor parallel", tensor_parallel, "overlap.blocking_wait"),
    Scenario("root only", lambda: fsdp(units=1, transfer=6000.0), "overlap.root_only_wrapping"),
    Scenario("no prefetch", lambda: fsdp(prefetch=False, transfer=3000.0), "overlap.no_prefetch"),
    Scenario("tiny units", lambda: fsdp(units=48, size=24 * MIB, transfer=7000.0, work=0.7), "overlap.small_units"),
    Scenario("find unused", find_unused, "overlap.find_unused"),
    Scenario(
        "bound", lambda: ddp(Simulator(), buckets=8, size=800 * MIB, transfer=60000.0), "overlap.communication_bound"
    ),
    Scenario(
        "longer compute",
        lambda: ddp(Simulator(), scale=lambda rank: 1.4 if rank == LATE else 1.0),
        "overlap.skew",
        (LATE,),
    ),
    Scenario("late host", lambda: paced(only_late(40000.0), ""), "overlap.host_bound", (LATE,)),
    Scenario("late loader", lambda: paced(only_late(40000.0), LOADER), "overlap.data_bound", (LATE,)),
    Scenario("slow launches", lambda: ddp(Simulator(launch_us=900.0), transfer=1500.0), "overlap.host_bound"),
    Scenario("item", sync_point, "overlap.sync_point"),
    Scenario("loader", lambda: paced(lambda rank: 40000.0, LOADER), "overlap.data_bound"),
    Scenario("launch blocking", lambda: ddp(Simulator(blocking=True)), "overlap.instrumented"),
)
