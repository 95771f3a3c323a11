"""The simulated jobs of the causes, each with the root cause that must be diagnosed, and healthy ones."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.trace_simulator import AUTOGRAD, MAIN, Per, Simulator

LAYERS = 12
FORWARD_US, BACKWARD_US = 300.0, 600.0
MIB = 1 << 20
STEPS = 3
RANKS = (0, 1, 2, 3)
LATE = 2
"""The rank that is late, where one is."""
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def even(rank: int) -> float:
    """Return the same amount of work for every rank."""
    return 1.0


def only_late(duration: float) -> Per:
    """Return a duration for the late rank, and hardly any for the others."""
    return lambda rank: duration if rank == LATE else 1.0


def forward(sim: Simulator, scale: Per = even, after_layer: Callable[[int], None] | None = None) -> None:
    """Compute a forward pass."""
    for layer in range(LAYERS):
        sim.kernel(lambda rank: FORWARD_US * scale(rank))
        if after_layer:
            after_layer(layer)


def backward(sim: Simulator, scale: Per = even, after_layer: Callable[[int], None] | None = None) -> None:
    """Compute a backward pass."""
    sim.thread = AUTOGRAD
    for layer in range(LAYERS):
        sim.kernel(lambda rank: BACKWARD_US * scale(rank))
        if after_layer:
            after_layer(layer)
    sim.thread = MAIN


def optimizer(sim: Simulator) -> None:
    """Update the parameters."""
    with sim.marked("Optimizer.step#AdamW.step"):
        for _ in range(3):
            sim.kernel(100.0, "multi_tensor_apply_kernel")


def reduced_backward(sim: Simulator, every: int = 3) -> list[list[float]]:
    """Compute a backward pass with a reduction of a bucket every few layers; return when those end."""
    ends: list[list[float]] = []

    def reduce(layer: int) -> None:
        if layer % every == every - 1:
            ends.append(sim.collective("all_reduce", 25 * MIB, 700.0))

    backward(sim, after_layer=reduce)
    return ends


def ddp(
    sim: Simulator,
    *,
    buckets: int = 4,
    size: int = 100 * MIB,
    transfer: float = 3000.0,
    micros: int = 1,
    same_stream: bool = False,
    scale: Per = even,
    sync: Callable[[int], bool] = lambda micro: True,
    per_step: Callable[[], None] | None = None,
) -> Simulator:
    """Simulate data parallelism that reduces gradients in buckets during backward."""
    for step in range(STEPS):
        with sim.marked(f"ProfilerStep#{step + 5}"):
            if per_step:
                per_step()
            for micro in range(micros):
                with sim.marked("DistributedDataParallel.forward"):
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
        with sim.marked(f"ProfilerStep#{step}"):
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


def by_step(sim: Simulator, step: Callable[[], None]) -> Simulator:
    """Run steps that end in the optimizer."""
    for number in range(STEPS):
        with sim.marked(f"ProfilerStep#{number}"):
            step()
            optimizer(sim)
    return sim


def unbucketed_job() -> Simulator:
    """Reduce every gradient by itself after backward."""
    sim = Simulator()

    def step() -> None:
        forward(sim)
        backward(sim)
        for _ in range(2 * LAYERS):
            sim.wait(sim.collective("all_reduce", 4 * MIB, 200.0))

    return by_step(sim, step)


def tensor_parallel_job() -> Simulator:
    """Reduce activations between the layers."""
    sim = Simulator()

    def inline(layer: int) -> None:
        if layer < LAYERS - 1:
            sim.wait(sim.collective("all_reduce", 16 * MIB, 120.0))

    def step() -> None:
        forward(sim, after_layer=inline)
        backward(sim, after_layer=inline)

    return by_step(sim, step)


def find_unused_job() -> Simulator:
    """Search the graph after forward."""
    sim = Simulator()

    def step() -> None:
        with sim.marked("DistributedDataParallel.forward"):
            forward(sim)
            sim.host(6000.0, op="torch.distributed.ddp.reducer::search_unused_parameters")
        for end in [*reduced_backward(sim), sim.collective("all_reduce", 4 * 1000, 40.0, dtype="Int")]:
            sim.wait(end)

    return by_step(sim, step)


def sync_point_job() -> Simulator:
    """Read a value of the device after every second layer."""
    sim = Simulator()

    def item(layer: int) -> None:
        if layer % 2:
            sim.drain()
            sim.host(250.0)

    def step() -> None:
        forward(sim, after_layer=item)
        for end in reduced_backward(sim):
            sim.wait(end)

    return by_step(sim, step)


def paced(late_us: Per, mark: str) -> Simulator:
    """Let the host do something else at the beginning of every step."""
    sim = Simulator()
    return ddp(sim, per_step=lambda: sim.host(late_us, mark))


def copies_job() -> Simulator:
    """Copy each micro-batch from pageable memory before it is used."""
    sim = Simulator()
    return ddp(sim, per_step=lambda: sim.copy(5000.0, 50 * MIB))


JOBS: dict[str, Callable[[], Simulator]] = {
    "accumulation": lambda: ddp(Simulator(), micros=4, transfer=12000.0),
    "one_bucket": lambda: ddp(Simulator(), buckets=1, transfer=6000.0),
    "tiny_buckets": lambda: ddp(Simulator(), buckets=120, size=12 * MIB, transfer=20000.0),
    "unbucketed": unbucketed_job,
    "find_unused": find_unused_job,
    "same_stream": lambda: ddp(Simulator(), same_stream=True, transfer=4000.0),
    "tensor_parallel": tensor_parallel_job,
    "root_only": lambda: fsdp(units=1, transfer=6000.0),
    "no_prefetch": lambda: fsdp(prefetch=False, transfer=3000.0),
    "tiny_units": lambda: fsdp(units=48, size=24 * MIB, transfer=7000.0, work=0.7),
    "bound": lambda: ddp(Simulator(), buckets=8, size=800 * MIB, transfer=60000.0),
    "longer_compute": lambda: ddp(Simulator(), scale=lambda rank: 1.4 if rank == LATE else 1.0),
    "late_host": lambda: paced(only_late(40000.0), ""),
    "late_loader": lambda: paced(only_late(40000.0), LOADER),
    "slow_launches": lambda: ddp(Simulator(launch_us=900.0), transfer=1500.0),
    "sync_point": sync_point_job,
    "loader": lambda: paced(lambda rank: 40000.0, LOADER),
    "copies": copies_job,
    "launch_blocking": lambda: ddp(Simulator(blocking=True)),
}
"""Name -> a job with one cause."""


@dataclass(frozen=True)
class Scenario:
    """A job and its truth."""

    name: str
    build: Callable[[], Simulator]
    cause: str = ""
    """Empty = healthy."""
    ranks: tuple[int, ...] = RANKS


_HEALTHY = (
    Scenario("ddp", lambda: ddp(Simulator())),
    Scenario("ddp, no_sync", lambda: ddp(Simulator(), micros=4, sync=lambda micro: micro == 3)),
    Scenario("ddp, small model", lambda: ddp(Simulator(), buckets=2, size=3 * MIB, transfer=300.0)),
    Scenario("ddp, jitter", lambda: ddp(Simulator(), scale=lambda rank: 1 + 0.003 * rank)),
    Scenario("fsdp", lambda: fsdp()),
    Scenario("fsdp, few units", lambda: fsdp(units=6)),
)
_CAUSES = {
    "accumulation": "accumulation_sync",
    "one_bucket": "single_bucket",
    "tiny_buckets": "small_buckets",
    "unbucketed": "unbucketed",
    "find_unused": "find_unused",
    "same_stream": "same_stream",
    "tensor_parallel": "blocking_wait",
    "root_only": "root_only_wrapping",
    "no_prefetch": "no_prefetch",
    "tiny_units": "small_units",
    "bound": "communication_bound",
    "longer_compute": "skew",
    "late_host": "pause",
    "late_loader": "data_bound",
    "slow_launches": "host_bound",
    "sync_point": "sync_point",
    "loader": "data_bound",
    "copies": "copies",
    "launch_blocking": "instrumented",
}
_ONE_RANK = ("longer_compute", "late_host", "late_loader")
SCENARIOS = _HEALTHY + tuple(
    Scenario(job, build, f"overlap.{_CAUSES[job]}", (LATE,) if job in _ONE_RANK else RANKS)
    for job, build in JOBS.items()
)
