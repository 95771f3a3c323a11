"""One rank of an expert-parallel group gets most of the tokens; the others wait for its experts in every block."""

from diagnostics.analysis.run_records import Figures, joint_group, layout
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._layout import layout_cause, slow
from diagnostics.contract.findings import LIKELY, Finding, Group
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import RunEvidence

_TEXTS = Texts(__file__)
_LOAD = 1.75
"""Multiple of the mean load. In its first 15 steps moe_tiny loads one of two ranks with up to 1.67 times the mean."""
_WORTH = 0.02  # Minimum share of the step.
_OWN = 0.5
"""Minimum share of the excess that a rank has itself; with less the busiest rank changes from block to block."""
_BALANCE = 0.01  # Minimum weight of the balance loss that is proposed: that of Switch Transformer (arXiv 2101.03961).
_RAISED = 10  # Factor on the weight of a balance loss that the run has already: its next order of magnitude.
_EXPERTS = 0.5  # Share of a step that its experts take if the sizes of the model are unknown.


def decide(figures: Figures, run: RunEvidence, metrics: Metrics) -> Finding:
    """Decide from the load of the busiest rank of the ep groups, and name it by the loads of all ranks."""
    loads, mesh = metrics.typical_loads(), layout(figures.evidence)
    load = max(metrics.typical("expert_rank_load") or 1.0, *loads, 1.0)
    share = _share(run) * (1 - 1 / load)
    if load < _LOAD or share < _WORTH:
        return _TEXTS.ruled_out(load=load)
    world = tuple(range(figures.evidence.world_size or 0))
    has_loads = mesh is not None and len(loads) == len(world)
    busiest = tuple(rank for rank in world if has_loads and loads[rank] - 1 >= _OWN * (load - 1))
    group = Group("ep", ()) if mesh is None else joint_group(mesh, "ep", busiest or world)
    row = "default" if busiest else "changes" if has_loads else "unknown"
    cut = any(run.get(f"parallel.{name}", 1) != 1 for name in ("tp", "cp"))  # dtk refuses a capacity with them.
    rows, raised = (row,) if cut else (row, "capacity"), max(_BALANCE, _RAISED * run.number("model.balance_loss", 0.0))
    detail, facts = f"expert_rank_load {load:.2f}", {"load": load, "raised": raised}
    return slow(figures, _TEXTS, rows, share, busiest or world, group, detail, LIKELY, **facts)


def _share(run: RunEvidence) -> float:
    names = ("width", "layers", "experts_per_token", "expert_width", "vocab_size")
    sizes = [run.get(f"model.{name}") for name in names]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return _EXPERTS
    width, layers, chosen, inner, words = sizes
    experts = 3 * chosen * width * inner
    return float(layers * experts / (layers * (experts + 4 * width**2) + words * width))


CAUSE = layout_cause(__file__, "ep", "expert_rank_load", decide)
