"""Calls of the simulated step -> traffic per step: groups by mesh dimension, micro-batches multiplied."""

from collections import Counter
from collections.abc import Sequence

from dtk.config.schema import Config
from dtk.simulate.step import Call

_MESH = "mesh_"
_CONTROL = "control"
Kind = tuple[str, str, int, int]
"""What calls that are one line of traffic have in common: operation, group, its ranks, the distance between them."""


def totals(calls: Sequence[Call], whole: str, simulated: int, rounds: int) -> tuple[Counter[Kind], Counter[Kind]]:
    """Count and bytes of each kind of call over all micro-batches; the control group is left out.

    Args:
        calls: of one simulated step.
        whole: the mesh dimension that the group of all ranks serves as.
        simulated: micro-batches of that step.
        rounds: micro-batches of the real one; those between the first and the last are alike.
    """
    counts: Counter[Kind] = Counter()
    sizes: Counter[Kind] = Counter()
    for call in calls:
        if call.group == _CONTROL:
            continue
        times = rounds - simulated + 1 if simulated > 2 and call.micro_batch == 1 else 1
        stride = call.ranks[1] - call.ranks[0] if len(call.ranks) > 1 else 1
        name = call.dimension or (call.group.removeprefix(_MESH) if call.group.startswith(_MESH) else whole)
        counts[call.op, name, len(call.ranks), stride] += times
        sizes[call.op, name, len(call.ranks), stride] += times * call.size_bytes
    return counts, sizes


def whole_dimension(config: Config, world_size: int) -> str:
    """Return the mesh dimension that holds all ranks; torch creates no separate group for it.

    Args:
        config: resolved configuration.
        world_size: ranks over all nodes.
    """
    mesh = config.strategy.states_mesh(config.mesh(world_size))
    if mesh.tp == world_size > 1:  # The states' mesh has no cp, and a pipeline is not simulated.
        return "tp"
    if mesh.ep_holds_copies:
        return "dp_replicate"
    if not config.strategy.traits.shards_parameters:
        return "dp"
    replicates = config.strategy.traits.replicated_over == "dp_replicate"
    return "dp_replicate" if replicates and mesh.dp_shard == 1 else "dp_shard"
