"""Walks one step of a strategy event by event, on one stream of compute and one per communicator.

Owns the order in which torch's wrappers issue work, and its dependencies. Its inputs are seconds and bytes, independent
of models and devices. Sources: Li et al. 2020 (DDP: buckets as backward fills them), Zhao et al. 2023 (FSDP: prefetch
and reshard), and torch.distributed.fsdp for the behaviour of FSDP2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dtk.plan.formulas.prediction import Transfer
from dtk.plan.timing.alpha_beta import Cost

Price = Callable[[str, str, float], Cost]  # Operation, group and bytes of the full buffer -> cost of a call.


@dataclass(slots=True)
class Walk:
    """Sequential streams; work starts when its stream is free and its inputs are ready."""

    price: Price
    blocking: bool = False
    """Whether the host waits for each collective, so that nothing overlaps."""
    now_s: float = 0.0
    """Time at which the compute stream is free."""
    compute_s: float = 0.0
    free_s: dict[str, float] = field(default_factory=dict)
    """Group -> time at which its communicator is free."""
    transfers: dict[tuple[str, str, str], Transfer] = field(default_factory=dict)

    def compute(self, seconds: float, after_s: float = 0.0) -> None:
        """Run on the compute stream, not before `after_s`."""
        self.now_s = max(self.now_s, after_s) + seconds
        self.compute_s += seconds

    def communicate(self, op: str, group: str, size_bytes: float, after_s: float | None = None) -> float:
        """Issue a collective after `after_s` (default: the current compute); return its end; empty ones are free."""
        if not size_bytes:
            return self.now_s
        cost = self.price(op, group, size_bytes)
        begin_s = max(self.now_s if after_s is None or self.blocking else after_s, self.free_s.get(group, 0.0))
        end_s = self.free_s[group] = begin_s + cost.seconds
        if self.blocking:
            self.now_s = end_s
        self.count(Transfer(op, group, 1, round(size_bytes), cost.algorithm, cost.seconds))
        return end_s

    def repeat(self, times: int, part: Callable[["Walk"], None]) -> None:
        """Walk a part without pending collectives `times` times; as each takes equally long, it is walked once."""
        if times < 1:
            return
        once = Walk(self.price, self.blocking)
        part(once)
        self.now_s += times * once.end_s
        self.add(once, times)

    def add(self, other: "Walk", times: int = 1) -> None:
        """Add the work of another walk without its time."""
        self.compute_s += times * other.compute_s
        for transfer in other.transfers.values():
            self.count(transfer, times)

    def count(self, transfer: Transfer, times: int = 1) -> None:
        """Add to the transfers."""
        key = transfer.op, transfer.group, transfer.algorithm
        so_far = self.transfers.get(key, replace(transfer, count=0, size_bytes=0, seconds=0.0))
        number, size = so_far.count + times * transfer.count, so_far.size_bytes + times * transfer.size_bytes
        self.transfers[key] = replace(
            transfer, count=number, size_bytes=size, seconds=so_far.seconds + times * transfer.seconds
        )

    @property
    def end_s(self) -> float:
        """Time at which all streams are done."""
        return max(self.now_s, *self.free_s.values(), 0.0)

    @property
    def communication_s(self) -> float:
        """Total seconds of all collectives."""
        return sum(transfer.seconds for transfer in self.transfers.values())


@dataclass(frozen=True, slots=True)
class Bucket:
    """A gradient bucket of DDP."""

    fill_s: float
    """Seconds of backward from the previous bucket until this one is full."""
    calls: tuple[tuple[str, float], ...]
    """Operation and bytes of each call that reduces it, in order."""


def ddp_micro_batch(walk: Walk, forward_s: float, buckets: Sequence[Bucket], last: bool) -> None:
    """Walk forward and backward; in the last micro-batch each full bucket is reduced while backward continues.

    DDP waits for all buckets at the end of backward, before further work on the compute stream.
    """
    walk.compute(forward_s)
    reduced_s = 0.0
    for bucket in buckets:
        walk.compute(bucket.fill_s)
        if last:
            for op, size in bucket.calls:
                reduced_s = walk.communicate(op, "dp", size)
    walk.compute(0.0, after_s=reduced_s)


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters that FSDP2 gathers and reduces together."""

    forward_s: float
    backward_s: float
    gather_bytes: float
    regather_bytes: float
    """Bytes of the all_gather for backward."""
    reduce_bytes: float
    shard_bytes: float
    """Bytes of the reduced gradient shard of a rank."""
    group: str = "dp_shard"
    """Ranks that gather and reduce it."""
    regather_group: str = "dp_shard"
    """Ranks that gather for backward."""
    averaged_over: str = ""
    """Ranks that average the reduced shards."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """A model under fully_shard: units in order of use, and the root unit around them."""

    units: tuple[Unit, ...]
    root: Unit
    """Its forward comes last and its backward first (the output projection); its reduction is the last of all."""
    reshard: bool
    """Whether units are gathered again for backward; the root unit never is."""
    prefetch_depth: int
    reduce_op: str = "reduce_scatter"


def fsdp_micro_batch(walk: Walk, model: Sharded, last: bool, gathers: bool = True) -> None:
    """Walk forward with prefetched gathers, and backward with prefetched gathers and asynchronous reductions.

    A gather starts when the unit `prefetch_depth` before it starts to wait for its own. Gathers and reductions over one
    group run in the order in which they are issued. Without `gathers` forward finds all parameters gathered.
    """
    scattered_s = averaged_s = 0.0

    def gather(unit: Unit) -> float:
        return walk.communicate("all_gather", unit.group, unit.gather_bytes)

    def regather(unit: Unit) -> float:
        return walk.communicate("all_gather", unit.regather_group, unit.regather_bytes)

    def reduce(unit: Unit) -> None:
        """Reduce a unit; FSDP2 keeps one input buffer, so compute waits for the previous reduction."""
        nonlocal scattered_s, averaged_s
        walk.compute(0.0, after_s=scattered_s)
        begin_s = max(walk.now_s, averaged_s)
        scattered_s = walk.communicate(model.reduce_op, unit.group, unit.reduce_bytes, begin_s)
        if unit.averaged_over:
            averaged_s = walk.communicate("all_reduce", unit.averaged_over, unit.shard_bytes, scattered_s)

    def ready_s(units: Sequence[Unit], i: int, done_s: list[float], gather: Callable[[Unit], float]) -> float:
        """Return when a unit is gathered; the units ahead of it are prefetched before."""
        while len(done_s) <= min(i + max(model.prefetch_depth, 1), len(units) - 1):
            done_s.append(gather(units[len(done_s)]))
        return done_s[i]

    if gathers:
        walk.compute(0.0, after_s=gather(model.root))
    forward_s: list[float] = []
    for i, unit in enumerate(model.units):
        walk.compute(unit.forward_s, after_s=ready_s(model.units, i, forward_s, gather) if gathers else 0.0)
    walk.compute(model.root.forward_s)
    turn = model.units[::-1]
    # The root's backward requests the last unit, so that its gather overlaps the output projection.
    backward_s = [regather(turn[0])] if model.reshard and turn else []
    walk.compute(model.root.backward_s)
    for i, unit in enumerate(turn):
        walk.compute(unit.backward_s, after_s=ready_s(turn, i, backward_s, regather) if model.reshard else 0.0)
        if last:
            reduce(unit)
    if last:
        reduce(model.root)
        walk.compute(0.0, after_s=max(walk.free_s.values(), default=0.0))


def update(walk: Walk, norm_s: float, scale_s: float, optimizer_s: float, norm_groups: Sequence[str]) -> float:
    """Walk clipping (skipped if both its parts take 0 s) and the optimizer; return the seconds of compute.

    Reading gradients takes `norm_s`, scaling `scale_s`; the squared norm, 4 bytes, is summed in each of `norm_groups`.
    """
    walk.compute(norm_s)
    for group in norm_groups if norm_s else ():
        walk.compute(0.0, after_s=walk.communicate("all_reduce", group, 4))
    walk.compute(scale_s + optimizer_s)
    return norm_s + scale_s + optimizer_s
