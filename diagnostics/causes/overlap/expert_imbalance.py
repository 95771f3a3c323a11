"""One rank of an expert-parallel group gets most of the tokens; the others wait for its experts in every block."""

from diagnostics.analysis.metrics_series import Figures
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._layout import layout_cause, slow
from diagnostics.contract.findings import Finding, Group
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import RunEvidence

_TEXTS = Texts(__file__)
_LOAD = 1.75
"""Multiple of the mean load. In its first 15 steps moe_tiny loads one of two ranks with up to 1.67 times the mean."""
_WORTH = 0.02  # Minimum share of the step.


def decide(figures: Figures, run: RunEvidence, metrics: Metrics) -> Finding:
    """Decide from the load of the busiest rank of the ep groups."""
    load, ep = metrics.typical("expert_rank_load") or 1.0, int(run.number("parallel.ep", 1))
    share = _share(run) * (1 - 1 / load)
    if load < _LOAD or share < _WORTH:
        return _TEXTS.ruled_out(load=load)
    ranks = tuple(range(figures.evidence.world_size or 0))
    facts = {"load": load, "ep": ep, "raised": max(0.01, 10 * run.number("model.balance_loss", 0.0))}
    return slow(figures, _TEXTS, share, ranks, Group("ep", ranks), f"expert_rank_load {load:.2f}", 0.85, **facts)


def _share(run: RunEvidence) -> float:
    """Return the share of a token's multiplications that its experts perform."""
    names = ("width", "layers", "experts_per_token", "expert_width", "vocab_size")
    sizes = [run.get(f"model.{name}") for name in names]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return 0.5
    width, layers, chosen, inner, words = sizes
    experts = 3 * chosen * width * inner
    return float(layers * experts / (layers * (experts + 4 * width**2) + words * width))


CAUSE = layout_cause(__file__, "ep", "expert_rank_load", decide)
