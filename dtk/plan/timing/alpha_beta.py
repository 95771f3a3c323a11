"""Seconds of a collective by the alpha-beta model: a message of n bytes takes latency + n / bandwidth.

Owns the formulas and the choice of the fastest algorithm. Independent of strategies and hardware files. Sources:
Hockney 1994 ("The communication challenge for MPP", the model); Thakur, Rabenseifner & Gropp 2005 ("Optimization of
collective communication operations in MPICH"); Patarasuk & Yuan 2009 ("Bandwidth optimal all-reduce algorithms for
clusters of workstations", the ring); Sanders, Speck & Traeff 2009 ("Two-tree algorithms for full bandwidth broadcast,
reduction and scan", NCCL's double binary tree); Mikami et al. 2018 ("Massively distributed SGD: ImageNet/ResNet-50
training in a flash", the 2-D torus).
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

    def ring_s(self, rounds: int) -> float:
        """Return the latency of `rounds` rounds of the ring: n - 1 steps each, of which nodes - 1 leave a node."""
        between = self.nodes - 1
        within = self.ranks - 1 - between
        return rounds * (within * self.intra.latency_s + between * self.inter.latency_s)

    def tree_s(self) -> float:
        """Return the latency from leaf to root of NCCL's trees: a chain inside a node, a binary tree over nodes."""
        within = min(self.per_node, self.ranks) - 1
        return within * self.intra.latency_s + math.ceil(math.log2(self.nodes)) * self.inter.latency_s


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a collective with the fastest algorithm."""

    algorithm: str
    seconds: float


def ring_all_reduce(size_bytes: float, group: Group) -> float:
    """Return the seconds of 2 (n - 1) steps of size / n each (Patarasuk & Yuan 2009), which is bandwidth-optimal."""
    return group.ring_s(2) + 2 * size_bytes * (group.ranks - 1) / group.ranks / group.bytes_per_s


def ring_gather(size_bytes: float, group: Group) -> float:
    """Return the seconds of a ring all_gather, reduce_scatter or all_to_all (Thakur et al. 2005, section 4.1)."""
    return group.ring_s(1) + size_bytes * (group.ranks - 1) / group.ranks / group.bytes_per_s


def tree_all_reduce(size_bytes: float, group: Group) -> float:
    """Return the seconds of a double binary tree: the whole size up and down, in few steps (Sanders et al. 2009)."""
    return 2 * group.tree_s() + 2 * size_bytes / group.bytes_per_s


def torus_all_reduce(size_bytes: float, group: Group) -> float:
    """Return the seconds of a 2-D torus over nodes, also known as hierarchical (Mikami et al. 2018, section 3.2).

    A reduce_scatter inside the node, an all_reduce of each shard over the nodes, and an all_gather inside the node.
    """
    row = Group(group.per_node, group.per_node, group.intra, group.inter)
    column = Group(group.nodes, 1, group.intra, group.inter)
    return 2 * ring_gather(size_bytes, row) + ring_all_reduce(size_bytes / group.per_node, column)


def chain_broadcast(size_bytes: float, group: Group) -> float:
    """Return the seconds of a pipeline along the ring (Thakur et al. 2005, section 5)."""
    return group.ring_s(1) + size_bytes / group.bytes_per_s


def tree_broadcast(size_bytes: float, group: Group) -> float:
    """Return the seconds of a double binary tree with full bandwidth (Sanders et al. 2009)."""
    return group.tree_s() + size_bytes / group.bytes_per_s


_GATHER = {"ring": ring_gather}
_ALGORITHMS = {
    "all_reduce": {"ring": ring_all_reduce, "tree": tree_all_reduce, "2-D torus": torus_all_reduce},
    "all_gather": _GATHER,
    "reduce_scatter": _GATHER,
    "all_to_all": _GATHER,
    "broadcast": {"chain": chain_broadcast, "tree": tree_broadcast},
}


def collective(op: str, size_bytes: float, group: Group) -> Cost:
    """Return the cost of one call by the fastest algorithm for `size_bytes`, those of its full (largest) buffer on a
    rank; ValueError if no formula covers the operation.
    """
    if group.ranks == 1:
        return Cost("none", 0.0)
    if op not in _ALGORITHMS:
        raise ValueError(f"no formula for {op}")
    algorithms = dict(_ALGORITHMS[op])
    if group.nodes == 1 or group.per_node == 1 or group.ranks % group.per_node:
        algorithms.pop("2-D torus", None)
    costs = (Cost(name, seconds(size_bytes, group)) for name, seconds in algorithms.items())
    return min(costs, key=lambda cost: cost.seconds)
