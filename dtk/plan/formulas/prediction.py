"""The prediction for one job: the contract between engines, reports and `plan.json`. Computes nothing."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import filled
from dtk.config.schema import Config
from dtk.sharding.declared import Collective

SCHEMA = "dtk.plan/1"

Engine = Literal["closed_form", "simulated"]
Link = Literal["intra_node", "inter_node"]
Category = Literal[
    "parameters", "gathered parameters", "gradients", "optimizer states", "activations", "logits", "buckets",
    "temporaries", "allocator slack",
]  # fmt: skip
"""The memory categories of `dtk diagnose` for the contents of the peak.

`logits`: the model's output and the temporaries of the loss. `buckets`: buffers of collectives. `temporaries`: of the
optimizer, of clipping, of kernels.
"""


@dataclass(frozen=True, slots=True)
class Memory:
    """The device memory of the fullest rank over one step, from the second step on."""

    rank: int
    at_peak_bytes: dict[Category, int]
    """Bytes per category at the peak; the values add up to it."""
    region: str
    """Region of the step that contains the peak: forward, backward, clip, optimizer."""
    by_region_bytes: dict[str, int]
    """Peak within each region."""
    host_bytes: int = 0
    """Bytes in host memory for offloading, per rank."""
    file_bytes: int = 0
    """Bytes in a file for offloading, per rank."""
    paged_bytes: int = 0
    """Bytes read from and written to the storage of offloaded states per step, per rank."""

    @property
    def peak_bytes(self) -> int:
        """Peak of the step."""
        return sum(self.at_peak_bytes.values())

    def excess_bytes(self, device_bytes: int, node_ranks: int, node_host_bytes: int | None) -> int:
        """Return the bytes above the device's memory or its node's host memory, whichever is more; 0 or less fits."""
        excess = self.peak_bytes - device_bytes
        if node_host_bytes is None or not self.host_bytes:
            return excess
        return max(excess, self.host_bytes * node_ranks - node_host_bytes)


@dataclass(frozen=True, slots=True)
class Traffic(Collective):
    """One kind of collective over one group, a dimension of the mesh, as it is declared and as a run records it."""

    ranks: int
    """Ranks in the group."""
    sent_bytes: int
    """Bytes that one rank sends by the ring algorithm, summed over the calls."""
    link: Link
    """The slowest link that the group crosses."""


@dataclass(frozen=True, slots=True)
class Transfer(Collective):
    """Time of one kind of collective over one group by one algorithm, per optimizer step."""

    algorithm: str
    """The fastest algorithm for its size: ring, tree, chain or 2-D torus; `point to point` for a send."""
    seconds: float
    """Seconds, summed over the calls."""


@dataclass(frozen=True, slots=True)
class Time:
    """Time of one optimizer step on the chosen hardware in seconds. compute_s + exposed_s + bubble_s = step_s."""

    compute_s: float
    """Time of forward, backward with recomputation, clipping and optimizer."""
    communication_s: float
    exposed_s: float
    """Communication time that does not overlap with compute."""
    step_s: float
    tokens_per_s: float
    mfu: float | None
    scaling_efficiency: float
    """compute_s / step_s: the speed relative to that without communication and bubble."""
    bubble_s: float = 0.0
    """Time for which the busiest rank of a pipeline waits for other stages and their messages."""
    optimizer_s: float = 0.0
    """Time of clipping and the optimizer, included in compute_s."""
    transfers: tuple[Transfer, ...] = ()
    """Transfers whose times add up to communication_s."""
    assumptions: tuple[str, ...] = ()
    """What the time excludes or assumes."""
    matmul_dtype: str = ""
    """Dtype of the matrix products: float32, tf32, bfloat16 or float16."""
    peak_flops: float | None = None
    """Peak FLOP/s of one device in that dtype, the denominator of `mfu`; None if unpublished."""


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
    """Usable bytes of the device; None if unknown."""
    node_ranks: int = 1
    """Ranks per node."""
    node_host_bytes: int | None = None
    """Usable host memory of a node in bytes; None if unknown."""
    dp_size: int | None = None
    """Number of parts of the batch; None if it equals the number of ranks."""
    time: Time | None = None
    notes: tuple[str, ...] = ()
    """Assumptions, and what the engine could not see."""

    @classmethod
    def of(cls, config: Config, world_size: int, **figures: Any) -> "Prediction":
        """Return the prediction of a configured job with a resolved batch and these `figures`."""
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
        """Whether the peak fits the device, and offloaded states the host; None if the device is unknown."""
        return None if self.device_memory_bytes is None else self.excess_bytes <= 0

    @property
    def host_bytes_per_node(self) -> int:
        """Bytes that offloading keeps in host memory on all ranks of a node."""
        return self.memory.host_bytes * self.node_ranks

    @property
    def exceeds_host(self) -> bool:
        """Whether offloading needs more than the known host memory of a node."""
        return self.node_host_bytes is not None and self.host_bytes_per_node > self.node_host_bytes

    @property
    def excess_bytes(self) -> int:
        """`Memory.excess_bytes` for this device and node."""
        return self.memory.excess_bytes(self.device_memory_bytes or 0, self.node_ranks, self.node_host_bytes)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, including the figures that are properties here."""
        return {"schema": SCHEMA, **asdict(self), "peak_bytes": self.memory.peak_bytes, "fits": self.fits}


def notes(module: str, rules: Mapping[str, object], **figures: Any) -> tuple[str, ...]:
    """Return the rows of `notes` in the YAML file next to a module whose rules hold, filled with figures."""
    rows = table_beside(module)["notes"]
    return tuple(filled(rows[row], figures) for row, holds in rules.items() if holds)
