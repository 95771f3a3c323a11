"""The stages of a pipeline wait: for the first micro-batch to arrive, for the last to leave, or for messages."""

from typing import Any

from diagnostics.analysis.run_records import Figures, layout
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._layout import at_place, layout_cause, slow
from diagnostics.contract.findings import POSSIBLE, Finding
from diagnostics.contract.mesh import Mesh
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import RunEvidence

_TEXTS = Texts(__file__)
ENOUGH = 4  # Micro-batches per stage from which the bubble counts as small (Huang et al. 2019, section 3: M >= 4 K).
_MOST_SAMPLES = 1 << 20  # Maximum global batch whose divisors are tried: the largest published are about 10,000.
_BEYOND = 0.1
"""Share of the step from which waiting not explained by schedule and uneven stages is worth a finding, if ranks do not
share devices. On a CPU the ranks share cores, and each waits while others compute (measured: up to 0.3)."""


def decide(figures: Figures, run: RunEvidence, metrics: Metrics) -> Finding:
    """Decide from the measured share of the step in which ranks did not compute, compared with an ideal schedule."""
    medians = [
        metrics.typical(f"pipeline_{name}") or 0.0 for name in ("bubble", "bubble_ideal", "imbalance", "busiest")
    ]
    bubble, ideal, imbalance, busiest = medians
    pp, virtual = (max(1, int(run.number(f"parallel.{key}", 1))) for key in ("pp", "stages_per_rank"))
    small = (pp - 1) / (ENOUGH * pp + pp - 1)
    uneven = 1 - (1 - ideal) / max(1.0, imbalance)
    beyond = bubble - max(uneven, ideal)
    ranks, first = tuple(range(figures.evidence.world_size or 0)), at_place(figures, 0)[1]
    facts: dict[str, Any] = {"bubble": bubble, "ideal": ideal, "busiest": int(busiest) % pp}
    if ideal > small / virtual + 1e-9 and min(bubble, ideal) > small / virtual:
        share = 1 - (1 - ideal) / (1 - small / virtual)
        shown = {**facts, "change": _more(run, layout(figures.evidence), pp), "enough": ENOUGH}
        return slow(figures, _TEXTS, "default", share, ranks, first, f"bubble {bubble:.0%}", **shown)
    if beyond > _BEYOND and run.get("launcher.device") == "cuda":
        return slow(figures, _TEXTS, "messages", beyond, ranks, first, f"bubble {bubble:.0%}", POSSIBLE, **facts)
    return _TEXTS.ruled_out(bubble=bubble, ideal=ideal)


def _more(run: RunEvidence, mesh: Mesh | None, pp: int) -> str:
    """Return the override for more micro-batches: of the same batch if it is divisible, otherwise of a larger one."""
    dp = 1 if mesh is None else mesh.dp_size
    samples = min(int(run.number("train.global_batch_size", 0)) // dp, _MOST_SAMPLES)
    fitting = [count for count in range(1, samples + 1) if samples % count == 0 and count >= ENOUGH * pp]
    if fitting:
        return f"parallel.microbatches={fitting[0]}"
    return f"train.global_batch_size={ENOUGH * pp * dp} parallel.microbatches={ENOUGH * pp}"


CAUSE = layout_cause(__file__, "pp", "pipeline_bubble", decide)
