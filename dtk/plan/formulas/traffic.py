"""What one rank communicates per optimizer step: the strategies' declarations, with links and ring volumes."""

from collections import Counter
from collections.abc import Mapping

from dtk.config.schema import Config
from dtk.plan.formulas.stages import stage_declarations, states_mesh
from dtk.plan.prediction import Link, Traffic


def traffic(config: Config, world_size: int, local_size: int) -> tuple[Traffic, ...]:
    """Return the collectives on the groups that carry tensors, per step from the second on.

    They are those that the strategy declares for this job, including those of clipping; of a pipeline those of the rank
    that communicates the most bytes. Not included: the 24 bytes of the control group, and what logging, evaluation,
    checkpoints and the comparison of replicas add in some steps.

    Args:
        config: its batch is settled for `world_size`.
        world_size: ranks over all nodes.
        local_size: ranks of one node.
    """
    mesh, states = config.mesh(world_size), states_mesh(config, world_size)
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    ranks = (stage_declarations(config, world_size, place) for place in range(config.parallel.pp))
    for declared in max(ranks, key=lambda calls: sum(call.size_bytes for call in calls)):
        counts[declared.op, declared.group] += declared.count
        sizes[declared.op, declared.group] += declared.size_bytes
    figures = {}
    for key, size in sizes.items():
        over, name = mesh if key[1] == "cp" else states, key[1]
        figures[*key, over.size(name), over.stride(name)] = counts[key], size
    return lines(figures, world_size, local_size)


def lines(
    figures: Mapping[tuple[str, str, int, int], tuple[int, int]], world_size: int, local_size: int
) -> tuple[Traffic, ...]:
    """Return the traffic lines of a prediction.

    Args:
        figures: operation, group, its ranks and their distance -> calls and bytes of their full buffers.
        world_size: ranks over all nodes.
        local_size: consecutive ranks of one node.
    """
    return tuple(
        Traffic(op, group, n, count, size, ring_bytes(op, size, n), link(n, stride, world_size, local_size))
        for (op, group, n, stride), (count, size) in figures.items()
    )


def ring_bytes(op: str, size_bytes: int, ranks: int) -> int:
    """Bytes that one rank sends by the ring algorithm (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce").

    With S bytes in the full buffer and n ranks: 2 S (n-1)/n for an all_reduce, S (n-1)/n for an all_gather, a
    reduce_scatter or (pipelined, on average over the ranks) a broadcast. Receiving a message sends nothing.
    """
    if op in ("send", "recv"):
        return size_bytes if op == "send" else 0
    return round((2 if op == "all_reduce" else 1) * size_bytes * (ranks - 1) / ranks)


def link(ranks: int, stride: int, world_size: int, local_size: int) -> Link:
    """Return the slowest link that any group of that dimension crosses.

    Args:
        ranks: in each group.
        stride: distance between neighbours of a group in the numbering of ranks.
        world_size: ranks over all nodes.
        local_size: consecutive ranks of one node.
    """
    bases = range(0, world_size, ranks * stride)
    firsts = (base + offset for base in bases for offset in range(min(stride, world_size)))
    inside = all(first // local_size == (first + (ranks - 1) * stride) // local_size for first in firsts)
    return "intra_node" if inside else "inter_node"
