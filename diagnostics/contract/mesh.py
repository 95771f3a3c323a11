"""The mesh of a job: the degree of each kind of parallelism, and the coordinates of a rank. Pure Python, no torch.
`world_size` counts processes; code that divides data uses `dp_size` and the index along `dp`.
"""

from dataclasses import dataclass, replace
from math import prod

ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Dimensions whose sizes multiply to world_size, outermost first: neighbours along `tp` have consecutive ranks, so
that the dimension with the most communication gets the fastest links."""
NUMBERED = {"tp": ORDER, "dp": ("pp", "tp", "dp_replicate", "dp_shard", "cp"), "pp": (*ORDER[1:], "pp")}
"""`parallel.placement` -> the order in which ranks are numbered. Data-parallel dimensions and cp stay adjacent, as
states are distributed over both."""
EXPERTS = ("expert_replicate", "expert_shard", "ep")
"""How the ranks of a stage are divided for experts, outermost first: a second view of all dimensions except `pp`."""
SECONDARY = "dp_secondary"
"""Consecutive ranks of dp_shard that together keep a copy of gathered parameters from forward to backward."""
DATA: tuple[str, ...] = ("dp_replicate", "dp_shard")
"""Dimensions of data parallelism, which the dimension `dp` covers together. They are adjacent in every order."""
MODEL = ("tp", "cp", "ep", "pp")
"""Dimensions that split the model or its activations: their ranks exchange neither parameters nor gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism, each at least 1."""

    dp_replicate: int = 1
    """Replicas of the (possibly sharded) model, each with different data."""
    dp_shard: int = 1
    """Ranks that share one copy of the parameters, each with different data."""
    cp: int = 1
    """Context parallel: parts of each sequence."""
    tp: int = 1
    """Tensor parallel: parts of each matrix."""
    pp: int = 1
    """Pipeline parallel: stages."""
    ep: int = 1
    """Expert parallel: parts of the experts. It divides dp_shard x cp x tp, or replicas, instead of adding ranks."""
    dp_secondary: int = 1
    """Size of the dp_shard subgroups that keep gathered parameters until backward; 1 if there are none."""
    innermost: str = "tp"
    """Key of `NUMBERED`: the dimension whose neighbours have consecutive ranks."""

    def __post_init__(self) -> None:
        for name in (*ORDER, "ep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is not a degree of parallelism: it must be at least 1")
        if self.divided_by_ep % self.ep:
            ranks = "dp_replicate" if self.dp_shard * self.cp * self.tp == 1 else "dp_shard x cp x tp"
            raise ValueError(f"ep={self.ep} does not divide {ranks} = {self.divided_by_ep}")

    @property
    def order(self) -> tuple[str, ...]:
        """Dimensions in the order in which ranks are numbered, outermost first."""
        return NUMBERED[self.innermost]

    def __str__(self) -> str:
        """Format as `dp_shard 4 x tp 2, ep 2`: dimensions with several ranks, outermost first, then ep."""
        sizes = " x ".join(f"{name} {self.size(name)}" for name in ORDER if self.size(name) > 1) or "one rank"
        return f"{sizes}, ep {self.ep}" if self.ep > 1 else sizes

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return prod(self.size(name) for name in ORDER)

    @property
    def dp_size(self) -> int:
        """Number of parts into which the global batch is divided."""
        return self.dp_replicate * self.dp_shard

    @property
    def ep_holds_copies(self) -> bool:
        """Whether the ranks that divide the experts hold replicas of all other parameters instead of shards."""
        return self.ep > 1 and self.dp_shard * self.cp * self.tp == 1

    @property
    def expert_shard(self) -> int:
        """Ranks that share one copy of an `ep` rank's experts, as dp_shard is for the other parameters."""
        return 1 if self.ep_holds_copies else self.divided_by_ep // self.ep

    @property
    def expert_replicate(self) -> int:
        """Number of replicas of the experts."""
        return self.dp_size * self.cp * self.tp // (self.ep * self.expert_shard)

    @property
    def divided_by_ep(self) -> int:
        """Ranks that `ep` divides into consecutive parts: those that share one copy of the parameters, or replicas."""
        inner = self.dp_shard * self.cp * self.tp
        return inner if inner > 1 else self.dp_replicate

    def size(self, dimension: str) -> int:
        """Return the number of ranks in each group of a dimension; ValueError if the dimension is unknown."""
        if dimension == "dp":
            return self.dp_size
        if dimension not in (names := (*ORDER, "dp", *EXPERTS, SECONDARY)):
            raise ValueError(f"{dimension} is not a mesh dimension: the dimensions are {', '.join(names)}")
        return int(getattr(self, dimension))

    def stride(self, dimension: str) -> int:
        """Return the rank distance of neighbours along a dimension; for `dp` along its innermost part."""
        self.size(dimension)
        if dimension in EXPERTS:
            inner = prod(self.size(name) for name in EXPERTS[EXPERTS.index(dimension) + 1 :])
            return inner * self.pp if self.innermost == "pp" else inner
        innermost = DATA[-1] if dimension in ("dp", SECONDARY) else dimension
        return prod(self.size(name) for name in self.order[self.order.index(innermost) + 1 :])

    def index(self, dimension: str, rank: int) -> int:
        """Return a rank's index along a dimension; along `dp` that of its part of the global batch."""
        return rank // self.stride(dimension) % self.size(dimension)

    def crosses(self, dimension: str, local_size: int) -> bool:
        """Whether a group of a dimension spans several nodes with `local_size` ranks each."""
        return any(len({rank // local_size for rank in group}) > 1 for group in self.groups(dimension))

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return a rank's index along each dimension, also `dp` and the experts'; ValueError if out of range."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not one of the {self.world_size} ranks of the mesh")
        return {name: self.index(name, rank) for name in (*ORDER, "dp", *EXPERTS)}

    def leads(self, rank: int, of_tokens: bool = False) -> bool:
        """Whether a rank counts, among those that share one part of the batch.

        It is the first along other dimensions than dp. Sums over all ranks count each sample once if only these ranks
        contribute. With `of_tokens`, for sums of losses, one rank for each part of the tokens counts, as ranks along cp
        have different tokens, and each along pp, as those without the last stage have zeros.
        """
        own = (*DATA, "pp", "cp") if of_tokens else DATA
        return not any(self.index(name, rank) for name in ORDER if name not in own)

    def folded(self, into: str) -> "Mesh":
        """Return the mesh with cp folded into the dimension `into`: the same ranks at the same coordinates."""
        return replace(self, cp=1, **{into: self.size(into) * self.cp})  # type: ignore[arg-type]

    def groups(self, dimension: str) -> list[list[int]]:
        """Return the ranks of every group of a dimension, in order; each rank is in exactly one group."""
        ranks = range(self.world_size)
        return [self.group(dimension, rank) for rank in ranks if self.index(dimension, rank) == 0]

    def group(self, dimension: str, rank: int) -> list[int]:
        """Return the ranks of the group that a rank belongs to in a dimension, ascending."""
        stride, first = self.stride(dimension), rank - self.index(dimension, rank) * self.stride(dimension)
        return [first + i * stride for i in range(self.size(dimension))]


def divisors(number: int) -> list[int]:
    """Return all divisors of `number` in ascending order."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
