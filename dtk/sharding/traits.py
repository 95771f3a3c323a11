"""Torch-free facts about a strategy: its keys, its traits, its row in tables and the collectives that it declares.
Configuration, plan, launcher and commands use these and never compare its name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from diagnostics.contract.mesh import DATA, ORDER, Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import Collective, ModelShapes, Shape

State = Literal["parameters", "gradients", "optimizer_state"]
STATES: tuple[State, ...] = ("parameters", "gradients", "optimizer_state")
Range = tuple[float, float]  # Smallest and largest allowed value of a key.
NO_LIMITS: Mapping[str, Range] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a strategy that other parts need. manifest.json records them for the diagnosis."""

    sharded: tuple[State, ...] = ()
    """States that are sharded between steps."""
    replicated_over: Literal["dp", "dp_replicate"] | None = None
    """Mesh dimension whose ranks must hold bit-identical parameters; None if no ranks do."""
    gradients_in: Literal["buckets", "units"] | None = None
    """How gradients are communicated: in DDP's buckets, in fully_shard's units, or None without communication."""
    collectives: tuple[str, ...] = ()
    """Collectives of a training step."""
    one_process: bool = False
    """Whether it always runs in one process."""
    least_cuda_devices: int = 0
    """Minimum number of CUDA devices of its process."""
    dimensions: tuple[str, ...] = DATA
    """Mesh dimensions that it implements; a mesh with others is rejected."""
    always_grouped: tuple[str, ...] = ()
    """Mesh dimensions over which it communicates even if they have one rank."""
    flattened: bool = False
    """Whether states are partitioned as one flat tensor instead of parameter by parameter."""
    keeps_gradients: bool = False
    """Whether gradient memory stays allocated from step to step."""
    keeps_gathered: bool = False
    """Whether gathered parameters always stay from forward to backward, independent of settings."""
    in_backward_conflict: str = ""
    """Why optimizer.in_backward=true cannot work; empty if it can."""
    simplicity: int = 100
    """Rank in tables and in recommendations of `dtk plan`, simplest first."""
    compared: bool = True
    """Whether `dtk plan` includes it in comparisons; False for aliases and historical baselines."""
    library: str = ""
    """Package that implements it; empty for torch alone. Strategies of a library cannot be simulated."""

    @property
    def shards_parameters(self) -> bool:
        """Whether a rank gathers parameters before it uses them."""
        return "parameters" in self.sharded

    @property
    def shards_all(self) -> bool:
        """Whether no rank keeps more than a shard of any state, so that no strategy needs less memory for them."""
        return {*self.sharded} == {*STATES} and not (self.keeps_gathered or self.replicated_over)

    @property
    def deals_out_parameters(self) -> bool:
        """Whether each whole parameter is updated by one rank, which then broadcasts it (ZeRO-1)."""
        return "optimizer_state" in self.sharded and not (self.shards_parameters or self.library)


class Reduction(NamedTuple):
    """The reduction of one bucket of gradients; the last one may be a message without gradients."""

    members: tuple[int, ...]
    """Indices of its parameters, counted from the last one that the model defines, as backward reaches them."""
    calls: tuple[tuple[str, int], ...]
    """Operation and full-buffer bytes of each call that reduces it."""
    beside_bytes: int = 0
    """Peak bytes that a compression hook holds in addition to the bucket."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyConfig:
    """Base class of the `strategy` section. Subclasses set `name` and add the keys of the strategy.

    Class attributes have no annotations, so they are not keys; subclasses set those that differ from their base class.
    """

    traits = Traits()
    # The row in `dtk strategies`, in the symbols of commands/strategies.yaml.
    kept = "P", "P", "K"
    """Bytes of parameters, gradients and optimizer state that a rank keeps between steps."""
    collectives = "none"
    """Collectives per optimizer step."""
    sent = "0"
    """Bytes that a rank sends per step with ring algorithms."""
    use_when = ""
    limits = NO_LIMITS
    engine = ""
    """Strategy whose class runs it; empty for its own class."""

    name: str
    offload: Literal["none", "optimizer", "parameters"] = "none"
    offload_to: Literal["host", "nvme"] = "host"
    offload_folder: str | None = None

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the docstring, which says in tables what the strategy is."""
        return (cls.__doc__ or "").partition("\n")[0].removesuffix(".")

    @property
    def offloads_parameters(self) -> bool:
        """Whether parameters, gradients and optimizer state live on the host, which also runs the update."""
        return self.offload == "parameters"

    def pages(self, device: str) -> bool:
        """Whether updates on this device type access states through windows; the CPU uses host memory directly."""
        return self.offload != "none" and (self.offload_to == "nvme" or (self.offload, device) == ("optimizer", "cuda"))

    def in_memory(self) -> Self:
        """Return the section without windows for a simulation, which has no memory to save."""
        away = {"offload": "none", "offload_to": "host", "offload_folder": None}
        return replace(self, **away) if self.pages("cuda") else self  # type: ignore[arg-type]

    def mesh(self, dp_size: int) -> Mesh:
        """Return the mesh of a number of ranks; DtkError if the configured degrees do not match it."""
        return Mesh(dp_shard=dp_size) if self.traits.shards_parameters else Mesh(dp_replicate=dp_size)

    @property
    def remembers_error(self) -> bool:
        """Whether a rank keeps a compression error for each parameter from step to step."""
        return False

    def check(self) -> None:
        """Reject keys that contradict each other; DtkError with the fix."""

    def warning(self, optimizer: Any) -> str:
        """Return a line about keys that change nothing beside the others, or that do not suit the optimizer; or ""."""
        return ""

    def check_job(self, job: Any, world_size: int) -> None:
        """Reject a configuration, resolved for `world_size`, that the strategy does not support; DtkError."""

    def reductions(self, shapes: Sequence[Shape], ranks: int) -> list[Reduction]:
        """Return the bucket reductions that run during backward, in order; empty without buckets."""
        return []

    def declare(
        self, shapes: ModelShapes, mesh: Mesh, precision: PrecisionConfig, accumulation_steps: int
    ) -> list[Collective]:
        """Return the collectives of a training step, from the second step on, without clipping."""
        return []

    def declare_clip(self, mesh: Mesh) -> tuple[Collective, ...]:
        """Declare the all_reduce of the sum of squares, one float32, over each dimension that divides the model."""
        return tuple(Collective("all_reduce", name, 1, 4) for name in self.summed(mesh))

    def summed(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the mesh dimensions over whose ranks gradients must be summed."""
        named = (name for name in self.grouped(mesh) if name != "dp_replicate")
        return tuple("ep" if name == "dp_shard" and mesh.ep_holds_copies else name for name in named)

    def states_mesh(self, mesh: Mesh) -> Mesh:
        """Return the mesh over which states are distributed.

        Ranks along cp have the same parameters and different tokens, so they count as data-parallel ranks.
        """
        return mesh.folded("dp_shard" if self.traits.shards_parameters else "dp_replicate")

    def on(self, mesh: Mesh) -> "StrategyConfig":
        """Return the section that distributes states on this mesh; it may be a variant if the model is sharded.

        DtkError if a key is not supported on this mesh.
        """
        return self

    def grouped(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the mesh dimensions that get process groups, outermost first, including some with one rank."""
        return tuple(name for name in ORDER if mesh.size(name) > 1 or name in self.traits.always_grouped)
