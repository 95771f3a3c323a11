"""One stage of a pipeline computes longer than the others, which wait for it in every micro-batch."""

from typing import Any

from diagnostics.analysis.metrics_series import Figures, read
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.causes.overlap._layout import at_place, nothing, slow
from diagnostics.contract.findings import Finding, ruled_out

ID = "overlap.pipeline_imbalance"
_TEXTS = texts_beside(__file__)
_LONGER = 1.25
"""Times the mean: stages of equal work on two shared CPU cores differ by up to 1.15 (docs/strategies.md)."""
_ALWAYS = 0.8
"""Share of the logged steps in which the same stage has to be the longest."""


def _moved(blocks: list[int], place: int, times: float) -> list[int]:
    """Return the blocks of each stage when the longest gives away what it has too much, taken as that many blocks."""
    excess = min(blocks[place] - 1, round(blocks[place] * (1 - 1 / times)))
    moved = list(blocks)
    for _ in range(excess):
        moved[place] -= 1
        moved[min((i for i in range(len(moved)) if i != place), key=lambda i: moved[i])] += 1
    return moved


def decide(figures: Figures) -> list[Finding]:
    """Decide from how much longer the busiest place of the pipeline computes than the mean, step after step."""
    if (finding := nothing(figures, ID, "pp", "pipeline_imbalance")) is not None:
        return [finding]
    run, metrics = figures.evidence.run, figures.metrics
    assert run is not None and metrics is not None
    times, places = metrics.typical("pipeline_imbalance") or 1.0, list(metrics.recent["pipeline_busiest"])
    place = max(places, key=places.count)
    if times < _LONGER or places.count(place) < _ALWAYS * len(places):
        return [ruled_out(ID, "the longest stage computes {times:.2f} times the mean", times=times)]
    pp, ranks = max(1, int(run.number("parallel.pp", 1))), at_place(figures, int(place))
    layers, chosen = run.get("model.layers"), run.get("parallel.blocks_per_stage")
    even = [layers // pp] * pp if isinstance(layers, int) and layers % pp == 0 else []
    blocks = [n for n in chosen if isinstance(n, int)] if isinstance(chosen, list) and chosen else even
    share = (1 - (metrics.typical("pipeline_bubble") or 0.0)) * (times - 1)
    detail = f"place {int(place)} along pp computes {times:.2f} times the mean"
    kind, change = "code", "move blocks from the longest stage to others (parallel.blocks_per_stage=[...])"
    if len(blocks) == pp and (moved := _moved(blocks, int(place), times)) != blocks:
        kind, change = "override", f"'parallel.blocks_per_stage={str(moved).replace(' ', '')}'"
    facts: dict[str, Any] = {"place": int(place), "pp": pp, "times": times, "kind": kind, "change": change}
    return [slow(figures, ID, _TEXTS, share, *ranks, detail, **facts)]


CAUSE = declared(__file__, read, decide)
