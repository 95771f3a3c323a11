"""`numeric.tp_divergence`: inputs or replicated parameters differ between the ranks of a tensor-parallel group.

No error is raised: each rank computes its part of the layers for different tokens, so the sums are meaningless.
"""

from diagnostics.analysis.layout import layout
from diagnostics.analysis.metrics_series import Figures, read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.numeric.rank_divergence import Difference, compared
from diagnostics.contract.findings import Finding, FormattedFacts
from diagnostics.evidence.model import Evidence, RunEvidence

_TEXTS = Texts(__file__)
INPUTS = "inputs"  # Name of a step's samples among the parameters that the run compares.


def _facts(first: Difference, is_tie: bool, equal_step: int | None) -> FormattedFacts:
    whose = _TEXTS.phrase("tie" if is_tie else "others")
    since = _TEXTS.phrase("at" if equal_step is None else "since", step=first.step, equal=equal_step)
    row = "samples" if first.parameter == INPUTS else "values"
    return _TEXTS.facts(row, whose=whose, since=since, parameter=first.parameter or "parameters")


def _without(evidence: Evidence, run: RunEvidence) -> Finding | None:
    mesh = layout(evidence)
    tp = mesh.tp if mesh is not None else run.get("parallel.tp", 1)
    return _TEXTS.ruled_out() if tp == 1 else None


def decide(figures: Figures) -> Finding:
    """Decide from the run's own comparison of the ranks of each tensor-parallel group."""
    return compared(figures, _facts, lambda difference: difference.dimension == "tp", _without)


CAUSE = declared(__file__, read, decide)
