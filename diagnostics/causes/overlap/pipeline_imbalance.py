"""One stage of a pipeline computes longer than the others, which wait for it in every micro-batch."""

from typing import Any

from diagnostics.analysis.run_records import Figures
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._layout import LEAST, at_place, layout_cause, slow
from diagnostics.contract.findings import Finding
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import RunEvidence, integer

_TEXTS = Texts(__file__)
_LONGER = 1.25
"""Multiple of the mean: stages with equal work on two shared CPU cores differ by up to 1.15 (docs/strategies.md)."""
_MOST_BLOCKS = 1 << 16  # Maximum per model: the deepest published ones have about 1,000.
_ALWAYS = 0.8  # Minimum share of the logged steps in which the same stage is the longest.


def _moved(blocks: list[int], place: int, times: float) -> list[int]:
    """Return the blocks of each stage after the longest gives away its excess, in whole blocks."""
    excess = min(blocks[place] - 1, round(blocks[place] * (1 - 1 / times)))
    moved = list(blocks)
    for _ in range(excess):
        moved[place] -= 1
        moved[min((i for i in range(len(moved)) if i != place), key=lambda i: moved[i])] += 1
    return moved


def decide(figures: Figures, run: RunEvidence, metrics: Metrics) -> Finding:
    """Decide from how much longer the busiest stage computes than the mean, in each step."""
    times, pp = metrics.typical("pipeline_imbalance") or 1.0, max(1, int(run.number("parallel.pp", 1)))
    places = [place for place in metrics.recent.get("pipeline_busiest", ()) if 0 <= place < pp]
    if len(places) < LEAST:
        return _TEXTS.undecided(pp=pp)
    place = max(places, key=places.count)
    if times < _LONGER or places.count(place) < _ALWAYS * len(places):
        return _TEXTS.ruled_out(times=times)
    ranks, sizes = at_place(figures, int(place)), run.manifest.get("stage_blocks")
    blocks = [n for n in sizes if integer(n, 1, _MOST_BLOCKS)] if isinstance(sizes, list) and len(sizes) == pp else []
    share = (1 - (metrics.typical("pipeline_bubble") or 0.0)) * (times - 1)
    detail, override = _TEXTS.phrase("seen", place=int(place), times=times), ""
    if len(blocks) == pp and (moved := _moved(blocks, int(place), times)) != blocks:
        override = f"'parallel.blocks_per_stage={str(moved).replace(' ', '')}'"
    facts: dict[str, Any] = {"place": int(place), "pp": pp, "times": times, "is_dtk": True, "override": override}
    return slow(figures, _TEXTS, "default", share, *ranks, detail, **facts)


CAUSE = layout_cause(__file__, "pp", "pipeline_imbalance", decide)
