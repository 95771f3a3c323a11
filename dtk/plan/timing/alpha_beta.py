"""Seconds of a collective by the alpha-beta model: a message of n bytes takes latency + n / bandwidth.

Sources: Hockney 1994 ("The communication challenge for MPP", the model); Thakur, Rabenseifner & Gropp 2005
("Optimization of collective communication operations in MPICH"); Patarasuk & Yuan 2009 ("Bandwidth optimal all-reduce
algorithms for clusters of workstations", the ring); Sanders, Speck & Traeff 2009 ("Two-tree algorithms for full
bandwidth broadcast, reduction and scan", NCCL's double binary tree); Mikami et al. 2018 ("Massively distributed SGD:
ImageNet/ResNet-50 training in a flash", the 2-D torus).
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of link, as seen by one device."""

    latency_s: float
    bytes_per_s: float
    """Bandwidth in one direction."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of communicating ranks and its distribution over nodes."""

    ranks: int
    per_node: int
    """Ranks of the group per node; each has an equal part of the node's network bandwidth."""
    intra: Link
    inter: Link

    @property
    def nodes(self) -> int:
        """Number of nodes that the group spans."""
        return -(-self.ranks // self.per_node)

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of a ring (or a pair of trees) over all ranks, per rank.

        Such a ring leaves a node once, and NCCL builds one ring per network adapter, each for a part of the data:
        between nodes all adapters of the group's ranks are used in parallel.
        """
        if self.nodes == 1:
            return self.intra.bytes_per_s
        between = self.per_node * self.inter.bytes_per_s
        return between if self.per_node == 1 else min(self.intra.bytes_per_s, between)

    @property
    def ring_s(self) -> float:
        """Latency of a pass around the ring: n - 1 steps, of which nodes - 1 leave a node."""
        between = self.nodes - 1
        within = self.ranks - 1 - between
        return within * self.intra.latency_s + between * self.inter.latency_s

    @property
    def tree_s(self) -> float:
        """Latency from leaf to root of NCCL's trees: a chain inside a node, a binary tree over nodes."""
        within = min(self.per_node, self.ranks) - 1
        return within * self.intra.latency_s + math.ceil(math.log2(self.nodes)) * self.inter.latency_s


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a collective with the fastest algorithm."""

    algorithm: str
    seconds: float


TORUS = "2-D torus"
_GATHER = 1, ("ring",)
_ALGORITHMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "all_reduce": (2, ("ring", "tree", TORUS)),
    "all_gather": _GATHER,
    "reduce_scatter": _GATHER,
    "all_to_all": _GATHER,
    "broadcast": (1, ("chain", "tree")),
}
"""Operation -> passes of the buffer over all ranks, and the algorithms for them."""


def algorithm_s(algorithm: str, passes: int, size_bytes: float, group: Group) -> float:
    """Return the seconds of an algorithm, each of whose passes moves the buffer over all ranks.

    - `ring`: n - 1 steps of size / n, which is bandwidth-optimal (Patarasuk & Yuan 2009; Thakur et al. 2005, 4.1).
    - `chain`: the whole size in a pipeline along the ring (Thakur et al. 2005, section 5).
    - `tree`: the whole size along a double binary tree, in few steps (Sanders et al. 2009).
    - `2-D torus`, or hierarchical (Mikami et al. 2018, 3.2): a reduce_scatter inside the node, an all_reduce of each
      shard over the nodes, and an all_gather inside the node.
    """
    if algorithm == TORUS:
        row = Group(group.per_node, group.per_node, group.intra, group.inter)
        column = Group(group.nodes, 1, group.intra, group.inter)
        shards_s = algorithm_s("ring", 2, size_bytes / group.per_node, column)
        return 2 * algorithm_s("ring", 1, size_bytes, row) + shards_s
    moved_bytes = size_bytes * (group.ranks - 1) / group.ranks if algorithm == "ring" else size_bytes
    latency_s = group.tree_s if algorithm == "tree" else group.ring_s
    return passes * (latency_s + moved_bytes / group.bytes_per_s)


def collective(op: str, size_bytes: float, group: Group) -> Cost:
    """Return the cost of one call by the fastest algorithm for `size_bytes`, those of its full (largest) buffer on a
    rank; ValueError if no formula covers the operation.
    """
    if group.ranks == 1:
        return Cost("none", 0.0)
    if op not in _ALGORITHMS:
        raise ValueError(f"no formula for {op}")
    passes, algorithms = _ALGORITHMS[op]
    has_torus = group.nodes > 1 and group.per_node > 1 and group.ranks % group.per_node == 0
    costs = (
        Cost(name, algorithm_s(name, passes, size_bytes, group)) for name in algorithms if name != TORUS or has_torus
    )
    return min(costs, key=lambda cost: cost.seconds)
