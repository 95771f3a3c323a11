"""The mesh of a job: the degree of each kind of parallelism, and the coordinates of a rank. Plain numbers, no torch.
`world_size` counts processes; whatever divides data uses `dp_size` and `dp_rank`.
"""

import functools
from dataclasses import dataclass, replace
from math import prod

ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Dimensions whose sizes multiply to world_size, outermost first: ranks that are neighbours along `tp` have
consecutive numbers, so that the dimension with the most communication gets the fastest links."""
NUMBERED = {"tp": ORDER, "dp": ("pp", "tp", "dp_replicate", "dp_shard", "cp"), "pp": (*ORDER[1:], "pp")}
"""`parallel.placement` -> the order in which ranks are numbered. Data-parallel dimensions and cp stay side by side, as
states are kept over both."""
EXPERTS = ("expert_replicate", "expert_shard", "ep")
"""How the ranks of a stage are divided for the experts, outermost first: a second view of all dimensions but `pp`."""
SECONDARY = "dp_secondary"
"""Consecutive ranks of dp_shard that keep a copy of gathered parameters between them from forward to backward."""
COMPOUND = {"dp": ("dp_replicate", "dp_shard"), **dict.fromkeys(EXPERTS, ("dp_replicate", "dp_shard", "cp", "tp"))}
"""Dimensions that lie over others: `dp` over both kinds of data parallelism, `EXPERTS` over all within a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism, each at least 1."""

    dp_replicate: int = 1
    """Copies of the (possibly sharded) model, each on other data."""
    dp_shard: int = 1
    """Ranks that share one copy of the parameters, each on other data."""
    cp: int = 1
    """Context parallel: parts of a sequence."""
    tp: int = 1
    """Tensor parallel: parts of a matrix."""
    pp: int = 1
    """Pipeline parallel: stages."""
    ep: int = 1
    """Expert parallel: parts of the experts. Has no ranks of its own: it divides dp_shard x cp x tp, or copies."""
    dp_secondary: int = 1
    """Ranks of each part of dp_shard that keeps gathered parameters between them until backward; 1 = none does."""
    innermost: str = "tp"
    """Of `NUMBERED`: along which neighbours have consecutive numbers."""

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
        """`dp_shard 4 x tp 2, ep 2`: what has more than one rank, outermost first, and what lies over it."""
        sizes = " x ".join(f"{name} {self.size(name)}" for name in ORDER if self.size(name) > 1) or "one rank"
        return f"{sizes}, ep {self.ep}" if self.ep > 1 else sizes

    @property
    def world_size(self) -> int:
        """Processes."""
        return prod(self.size(name) for name in ORDER)

    @property
    def dp_size(self) -> int:
        """Parts into which the global batch is divided."""
        return self.dp_replicate * self.dp_shard

    @property
    def ep_holds_copies(self) -> bool:
        """Whether ranks that divide the experts hold copies of all else, instead of other shards."""
        return self.ep > 1 and self.dp_shard * self.cp * self.tp == 1

    @property
    def expert_shard(self) -> int:
        """Ranks that share one copy of the experts of an `ep` rank, as dp_shard those of all else."""
        return 1 if self.ep_holds_copies else self.divided_by_ep // self.ep

    @property
    def expert_replicate(self) -> int:
        """Copies of the experts."""
        return self.dp_size * self.cp * self.tp // (self.ep * self.expert_shard)

    @property
    def divided_by_ep(self) -> int:
        """Ranks of which `ep` takes consecutive parts: those that hold one copy of the parameters, else the copies."""
        inner = self.dp_shard * self.cp * self.tp
        return inner if inner > 1 else self.dp_replicate

    def size(self, dimension: str) -> int:
        """Return the number of ranks in each group of a dimension.

        Raises:
            ValueError: there is no such dimension.
        """
        if dimension == "dp":
            return self.dp_size
        if dimension not in (names := (*ORDER, "dp", *EXPERTS, SECONDARY)):
            raise ValueError(f"{dimension} is not a mesh dimension: the dimensions are {', '.join(names)}")
        return int(getattr(self, dimension))

    def stride(self, dimension: str) -> int:
        """Return the distance between the numbers of neighbours along a dimension; of `dp` along the innermost part."""
        self.size(dimension)
        if dimension in EXPERTS:
            return prod(self.size(name) for name in EXPERTS[EXPERTS.index(dimension) + 1 :])
        innermost = COMPOUND.get(dimension, ("dp_shard" if dimension == SECONDARY else dimension,))[-1]
        return prod(self.size(name) for name in self.order[self.order.index(innermost) + 1 :])

    def crosses(self, dimension: str, local_size: int) -> bool:
        """Whether ranks of one group of a dimension lie on different nodes of so many ranks."""
        return any(len({rank // local_size for rank in group}) > 1 for group in self.groups(dimension))

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return a rank's index along each dimension, `dp` and those of the experts included.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not one of the {self.world_size} ranks of the mesh")
        return dict(_coordinate(self, rank))

    def dp_rank(self, rank: int) -> int:
        """Return which part of the global batch a rank trains on; equal on ranks that share the work on one part."""
        return _coordinate(self, rank)["dp"]

    def leads(self, rank: int, of_tokens: bool = False) -> bool:
        """Whether a rank is the one that counts among those that share one part of the batch.

        It is on the last pipeline stage, which alone knows the loss, and the first along other dimensions. Sums over
        all ranks count each sample once if only these contribute; of what ranks know of their own tokens each counts
        that is the one for them (`of_tokens`), as ranks along cp have different ones.
        """
        place = _coordinate(self, rank)
        own = (*COMPOUND["dp"], "pp", "cp") if of_tokens else (*COMPOUND["dp"], "pp")
        return place["pp"] == self.pp - 1 and not any(place[name] for name in ORDER if name not in own)

    def folded(self, into: str) -> "Mesh":
        """Return the mesh with cp as a part of the dimension `into`: the same ranks, at the same places."""
        return replace(self, cp=1, **{into: self.size(into) * self.cp})  # type: ignore[arg-type]

    def groups(self, dimension: str) -> list[list[int]]:
        """Return the ranks of every group of a dimension, in order; each rank is in exactly one group."""
        size = self.size(dimension)
        if dimension == SECONDARY:
            return [[*range(first, first + size)] for first in range(0, self.world_size, size)]
        fixed = {*ORDER} - {*COMPOUND.get(dimension, (dimension,))}
        if dimension in EXPERTS:
            fixed |= {*EXPERTS} - {dimension}
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            place = _coordinate(self, rank)
            groups.setdefault(tuple(place[name] for name in fixed), []).append(rank)
        return list(groups.values())

    def group(self, dimension: str, rank: int) -> list[int]:
        """Return the ranks of the group of a dimension that a rank belongs to."""
        return next(ranks for ranks in self.groups(dimension) if rank in ranks)


@functools.cache
def _coordinate(mesh: Mesh, rank: int) -> dict[str, int]:
    """`Mesh.coordinate`, computed once: ranks ask at every step."""
    place = {name: rank // mesh.stride(name) % mesh.size(name) for name in ORDER}
    place["dp"] = place["dp_replicate"] * mesh.dp_shard + place["dp_shard"]
    within = rank // mesh.pp if mesh.innermost == "pp" else rank % (mesh.world_size // mesh.pp)
    place.update((name, within // mesh.stride(name) % mesh.size(name)) for name in EXPERTS)
    return place


def divisors(number: int) -> list[int]:
    """Return every whole number that divides `number`, the smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
