"""What is known of a strategy without torch: its keys, its traits, its row in the table, what it declares to send.
Configuration, plan, launcher and commands read these and never its name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from dtk.parallel.mesh import ORDER, Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.strategies.declared import Collective, ModelShapes, Shape

State = Literal["parameters", "gradients", "optimizer_state"]
Range = tuple[float, float]
"""Smallest and largest value of a key."""
NO_LIMITS: Mapping[str, Range] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What others must know of a strategy. Written into manifest.json, where the diagnosis reads it."""

    sharded: tuple[State, ...] = ()
    """States of which a rank keeps only a part between steps."""
    replicated_over: Literal["dp", "dp_replicate"] | None = None
    """Mesh dimension whose ranks must hold the same parameters bit for bit; None = each rank's are its own."""
    gradients_in: Literal["buckets", "units"] | None = None
    """How gradients travel: in DDP's buckets, in units of fully_shard, or not between processes."""
    collectives: tuple[str, ...] = ()
    """Operations of a training step."""
    one_process: bool = False
    """Whether it runs in one process, however many ranks others would have."""
    least_cuda_devices: int = 0
    """CUDA devices that its process needs."""
    dimensions: tuple[str, ...] = ("dp_replicate", "dp_shard")
    """Mesh dimensions that it implements; it refuses a mesh with others."""
    always_grouped: tuple[str, ...] = ()
    """Mesh dimensions over which it communicates even where they have one rank."""
    flattened: bool = False
    """Whether states are cut into equal parts of one flat tensor, not parameter by parameter."""
    keeps_gradients: bool = False
    """Whether the memory of gradients is held from step to step."""
    keeps_gathered: bool = False
    """Whether gathered parameters stay from forward to backward by definition, not by a setting."""
    offloads: tuple[Literal["optimizer", "parameters"], ...] = ("optimizer",)
    """States that `offload` can move off the device."""
    in_backward_conflict: str = ""
    """Why optimizer.in_backward=true cannot work; empty where it can."""
    simplicity: int = 100
    """Place in the order of tables and of what `dtk plan` recommends, the simplest first."""
    compared: bool = True
    """Whether `dtk plan` compares it with the others; not where it is another name or a historical baseline."""
    library: str = ""
    """Package that runs it; empty = torch alone. What a library runs cannot be simulated."""
    needs_less_memory: str | None = None
    """The strategy to use where this one needs too much memory for model states; None = none shards more."""

    @property
    def shards_parameters(self) -> bool:
        """Whether a rank gathers parameters before it uses them."""
        return "parameters" in self.sharded

    @property
    def deals_out_parameters(self) -> bool:
        """Whether each whole parameter is updated by one rank, which then sends it to the others (ZeRO-1)."""
        return "optimizer_state" in self.sharded and not (self.shards_parameters or self.library)


class Reduction(NamedTuple):
    """One bucket of gradients; the last may be a message without any."""

    members: tuple[int, ...]
    """Its parameters, counted from the last that the model defines: in the order in which backward reaches them."""
    calls: tuple[tuple[str, int], ...]
    """Operation and bytes of the full buffer of each call that reduces it."""
    beside_bytes: int = 0
    """What a hook that compresses holds beside the bucket at the most."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """What `dtk strategies` prints, in the letters of `dtk.strategies.table`."""

    summary: str
    kept: tuple[str, str, str]
    """Bytes of parameters, gradients and optimizer state that a rank keeps between steps."""
    collectives: str
    """Per optimizer step."""
    sent: str
    """Bytes a rank sends per step with ring algorithms."""
    use_when: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyConfig:
    """Base of the `strategy` section. Subclasses give `name` its value and add the keys of the strategy.

    Class attributes are without annotations: they are no keys.
    """

    traits = Traits()
    limits = NO_LIMITS
    row: ClassVar[TableRow]
    engine = ""
    """Strategy whose class runs it; empty = its own."""

    name: str
    offload: Literal["none", "optimizer", "parameters"] = "none"
    offload_to: Literal["host", "nvme"] = "host"
    offload_folder: str | None = None

    @property
    def offloads_parameters(self) -> bool:
        """Whether parameters, their gradients and the optimizer state live on the host, where the update runs too."""
        return self.offload == "parameters"

    def pages(self, device: str) -> bool:
        """Whether an update on this kind of device sees states through windows; the CPU has the host's memory."""
        return self.offload != "none" and (self.offload_to == "nvme" or (self.offload, device) == ("optimizer", "cuda"))

    def in_memory(self) -> Self:
        """Return the section without windows: what a simulation runs, which has no memory to save."""
        away = {"offload": "none", "offload_to": "host", "offload_folder": None}
        return replace(self, **away) if self.pages("cuda") else self  # type: ignore[arg-type]

    def mesh(self, world_size: int) -> Mesh:
        """Return the degrees of parallelism on that many ranks.

        Raises:
            DtkError: the configured degrees do not fit the ranks.
        """
        return Mesh(dp_shard=world_size) if self.traits.shards_parameters else Mesh(dp_replicate=world_size)

    @property
    def remembers_error(self) -> bool:
        """Whether a rank keeps an error of compression for each parameter from step to step."""
        return False

    def check(self) -> None:
        """Refuse keys that contradict each other.

        Raises:
            DtkError: with what to type instead.
        """

    def without_effect(self) -> str:
        """Return a line about keys with another value than their default that change nothing beside the others."""
        return ""

    def check_job(self, job: Any, world_size: int) -> None:
        """Refuse what the strategy cannot do of a whole configuration, which is settled for `world_size`.

        Raises:
            DtkError: with what to type instead.
        """

    def reductions(self, shapes: Sequence[Shape], ranks: int) -> list[Reduction]:
        """Return what reduces the gradients bucket by bucket while backward runs, in order; nothing without buckets.

        Args:
            shapes: of the parameters that are trained, in the order in which the model defines them.
            ranks: data-parallel ranks.
        """
        return []

    def declare(
        self, shapes: ModelShapes, mesh: Mesh, precision: PrecisionConfig, accumulation_steps: int
    ) -> list[Collective]:
        """Return the collectives of a training step, from the second step on, without clipping.

        Args:
            shapes: of the parameters that are trained.
            mesh: of the job.
            precision: the `precision` section.
            accumulation_steps: micro-batches per optimizer step.
        """
        return []

    def declare_clip(self, mesh: Mesh) -> tuple[Collective, ...]:
        """Declare the all_reduce of the sum of squares, one float32, over each dimension that divides the model."""
        return tuple(Collective("all_reduce", name, 1, 4) for name in self.summed(mesh))

    def summed(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the mesh dimensions whose ranks hold different parts of the gradients."""
        named = (name for name in self.grouped(mesh) if name != "dp_replicate")
        return tuple("ep" if name == "dp_shard" and mesh.ep_holds_copies else name for name in named)

    def states_mesh(self, mesh: Mesh) -> Mesh:
        """Return the mesh over which states are kept.

        Ranks along cp have the same parameters and other tokens, so that they are data-parallel ranks to it.
        """
        return mesh.folded("dp_shard" if self.traits.shards_parameters else "dp_replicate")

    def on(self, mesh: Mesh) -> "StrategyConfig":
        """Return the section that keeps states in this way on a mesh; it may be another where the model is cut.

        Raises:
            DtkError: a key that cannot be kept there.
        """
        return self

    def grouped(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the mesh dimensions whose groups are made, outermost first: also some with one rank."""
        return tuple(name for name in ORDER if mesh.size(name) > 1 or name in self.traits.always_grouped)
