"""The prediction for one job: the contract between engines, reports and `plan.json`. Computes nothing."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dtk.config.schema import Config

SCHEMA = "dtk.plan/1"

Engine = Literal["closed_form", "simulated"]
Link = Literal["intra_node", "inter_node"]
Category = Literal[
    "parameters", "gathered parameters", "gradients", "optimizer states", "activations", "logits", "buckets",
    "temporaries", "allocator slack",
]  # fmt: skip
"""The words of `dtk diagnose` for what the peak consists of.

`logits`: the model's output and what the loss makes of it. `buckets`: buffers of collectives. `temporaries`: of the
optimizer, of clipping, of kernels.
"""


@dataclass(frozen=True, slots=True)
class Memory:
    """The device memory of the fullest rank over one step, from the second step on."""

    rank: int
    at_peak_bytes: dict[Category, int]
    """What the peak consists of; the values add up to it."""
    region: str
    """Region of the step in which it stands: forward, backward, clip, optimizer."""
    by_region_bytes: dict[str, int]
    """Highest use within each region."""
    host_bytes: int = 0
    """Kept in host memory by offloading, per rank."""
    file_bytes: int = 0
    """Kept in a file by offloading, per rank."""
    paged_bytes: int = 0
    """Read from and written to the place of offloaded states in a step, per rank."""

    @property
    def peak_bytes(self) -> int:
        """Highest use of the step."""
        return sum(self.at_peak_bytes.values())

    def excess_bytes(self, device_bytes: int, node_ranks: int, node_host_bytes: int | None) -> int:
        """Bytes beyond the device, or beyond the host of its node, whichever is more; 0 or less fits."""
        excess = self.peak_bytes - device_bytes
        if node_host_bytes is None or not self.host_bytes:
            return excess
        return max(excess, self.host_bytes * node_ranks - node_host_bytes)


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of collective over one group, per optimizer step from the second step on."""

    op: str
    group: str
    """Dimension of the mesh: dp, dp_shard, dp_replicate."""
    ranks: int
    """Ranks in the group."""
    count: int
    size_bytes: int
    """Full (largest) buffers on one rank, summed over the calls: what `Collective` declares and a run records."""
    sent_bytes: int
    """What one rank sends by the ring algorithm, summed over the calls."""
    link: Link
    """The slowest link that the group crosses."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Time of one kind of collective over one group by one algorithm, per optimizer step."""

    op: str
    group: str
    algorithm: str
    """The fastest for its size: ring, tree, chain or 2-D torus."""
    count: int
    size_bytes: int
    """Full buffers, summed over the calls."""
    seconds: float
    """Summed over the calls."""


@dataclass(frozen=True, slots=True)
class Time:
    """One optimizer step on the chosen hardware; seconds. compute_s + exposed_s + bubble_s = step_s."""

    compute_s: float
    """Forward, backward with recomputation, clipping and optimizer."""
    communication_s: float
    exposed_s: float
    """Part of the communication that nothing hides."""
    step_s: float
    tokens_per_s: float
    mfu: float | None
    scaling_efficiency: float
    """Tokens/s per rank over those of one rank that communicates nothing, at the same micro-batch."""
    bubble_s: float = 0.0
    """What the busiest rank of a pipeline waits for other stages and their messages."""
    optimizer_s: float = 0.0
    """The part of compute_s that clipping and the optimizer take."""
    transfers: tuple[Transfer, ...] = ()
    """What communication_s is the sum of."""
    assumptions: tuple[str, ...] = ()
    """What the time does not contain, or guesses."""
    matmul_dtype: str = ""
    """Type of the matrix products: float32, tf32, bfloat16 or float16."""
    peak_flops: float | None = None
    """What `mfu` is a part of: FLOP/s of one device in that type; None when nobody publishes it."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One job on one kind of hardware, by one engine."""

    engine: Engine
    strategy: str
    model: str
    parameters: int
    world_size: int
    global_batch_size: int
    micro_batch_size: int
    sequence_length: int
    memory: Memory
    traffic: tuple[Traffic, ...]
    hardware: str | None = None
    device_memory_bytes: int | None = None
    """Usable bytes of the device; None when it is not known."""
    node_ranks: int = 1
    """Ranks that share a node."""
    node_host_bytes: int | None = None
    """Usable host memory of a node; None when it is not known."""
    dp_size: int | None = None
    """Parts into which the batch is divided; None = as many as there are ranks."""
    time: Time | None = None
    notes: tuple[str, ...] = ()
    """What was assumed, and what the engine could not see."""

    @classmethod
    def of(cls, config: "Config", world_size: int, **figures: Any) -> "Prediction":
        """Return the prediction of a configured job, whose batch is settled, with these `figures`."""
        return cls(
            strategy=config.strategy.name,
            model=config.model.name,
            world_size=world_size,
            global_batch_size=config.train.global_batch_size,
            micro_batch_size=config.train.micro_batch_size,
            sequence_length=config.data.sequence_length,
            dp_size=config.mesh(world_size).dp_size if config.parallel.cut else None,
            **figures,
        )

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the device, and what is offloaded within the host; None without a device."""
        return None if self.device_memory_bytes is None else self.excess_bytes <= 0

    @property
    def host_bytes_per_node(self) -> int:
        """What offloading keeps in host memory on all ranks of a node."""
        return self.memory.host_bytes * self.node_ranks

    @property
    def exceeds_host(self) -> bool:
        """Whether more is offloaded than the host of a node is known to have."""
        return self.node_host_bytes is not None and self.host_bytes_per_node > self.node_host_bytes

    @property
    def excess_bytes(self) -> int:
        """As `Memory.excess_bytes`, of this device and node."""
        return self.memory.excess_bytes(self.device_memory_bytes or 0, self.node_ranks, self.node_host_bytes)

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the figures that are properties here."""
        return {"schema": SCHEMA, **asdict(self), "peak_bytes": self.memory.peak_bytes, "fits": self.fits}
