"""Tensor-parallel groups span nodes, so every layer waits for the links between them."""

from msgspec.structs import replace

from diagnostics.analysis.run_records import joint_group, recorded_layout
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_GROUPS = ("tp", "mesh_tp")  # Names of the tensor-parallel group in traces.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the nodes of the ranks, and from the cost of the tensor-parallel collectives."""
    manifest = view.run.manifest if view.run is not None else {}
    topology, mesh = manifest.get("topology"), recorded_layout(manifest, view.world_size)
    node = topology.get("nproc") if isinstance(topology, dict) else None
    if mesh is None or not isinstance(node, int) or node < 1:
        return _TEXTS.undecided()
    tp, crossing = mesh.tp, [group for group in mesh.groups("tp") if group[0] // node != group[-1] // node]
    if tp == 1 or not crossing:
        return _TEXTS.ruled_out("no_tp" if tp == 1 else "inside", tp=tp, node=node)
    near = max((n for n in range(1, node + 1) if node % n == 0 and tp % n == 0), default=1)
    better = "parallel.placement=tp" if near == tp else f"parallel.tp={near}"
    exposed = shared.exposed_ms(view, lambda call: call.message.group in _GROUPS)
    case = shared.judged(view, shared.costly(view, exposed, _TEXTS, tp=tp, node=node, better=better))
    if case.status != "confirmed":
        return case
    group = joint_group(mesh, "tp", (group[0] for group in crossing))
    return replace(case, group=group, ranks=tuple(rank for rank in case.ranks if rank in group.ranks) or case.ranks)


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_collectives,))
