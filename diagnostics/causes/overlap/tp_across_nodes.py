"""Tensor-parallel groups span nodes, so every layer waits for the links between them."""

from diagnostics.analysis.layout import recorded_layout
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_GROUPS = ("tp", "mesh_tp")  # Names of the tensor-parallel group in traces.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the nodes of the ranks, and from the cost of the tensor-parallel collectives."""
    topology = view.run.manifest.get("topology") if view.run is not None else None
    tp = view.run.get("parallel.tp", 1) if view.run is not None else 1
    node = topology.get("nproc") if isinstance(topology, dict) else None
    if view.run is None or not isinstance(tp, int) or not isinstance(node, int) or node < 1:
        return _TEXTS.undecided()
    world = topology.get("world_size") if isinstance(topology, dict) else None
    mesh = recorded_layout(view.run.manifest, world)
    groups = [range(tp)] if mesh is None else [mesh.group("tp", rank) for rank in range(mesh.world_size)]
    if tp == 1 or (node % tp == 0 and all(group[0] // node == group[-1] // node for group in groups)):
        return _TEXTS.ruled_out("no_tp" if tp == 1 else "divides", tp=tp, node=node)
    near = max((n for n in range(1, node + 1) if node % n == 0 and tp % n == 0), default=1)
    better = "parallel.placement=tp" if near == tp else f"parallel.tp={near}"
    exposed = shared.exposed_ms(view, lambda call: call.message.group in _GROUPS)
    return shared.judged(view, shared.costly(view, exposed, _TEXTS, tp=tp, node=node, better=better))


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_collectives,))
