"""Shared by causes about parallel layouts: the figures in a dtk run's records, and the cost in ms per step."""

from collections.abc import Callable, Sequence
from typing import Any

from diagnostics.analysis.run_records import Figures, joint_group, layout, read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.overlap._shared import TEXTS
from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import CERTAIN, Cost, EvidenceItem, Finding, Group, confirmed
from diagnostics.contract.formatting import Phrase
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import RunEvidence

_TEXTS = Texts(__file__)
Decide = Callable[[Figures, RunEvidence, Metrics], Finding]
LEAST = 5  # Minimum number of logged steps for a meaningful median.


def layout_cause(file: str, degree: str, figure: str, decide: Decide) -> Cause[Figures]:
    """Return a cause that `decide` decides if a run's records show this degree of parallelism in use and the figure."""

    def decide_recorded(figures: Figures) -> Finding:
        run, metrics = figures.evidence.run, figures.metrics
        if run is None:
            return _TEXTS.undecided("no_record")
        if run.get(f"parallel.{degree}", 1) == 1:
            return _TEXTS.ruled_out("degree_1", degree=degree)
        if metrics is None or len(metrics.recent.get(figure, ())) < LEAST:
            return _TEXTS.undecided("few_steps", least=LEAST)
        return decide(figures, run, metrics)

    return declared(file, read, decide_recorded)


def slow(
    figures: Figures,
    texts: Texts,
    said: str | Sequence[str],
    share: float,
    ranks: tuple[int, ...],
    group: Group,
    detail: Phrase | str,
    confidence: float = CERTAIN,
    **facts: Any,
) -> Finding:
    """Return a confirmed finding that costs a share of the step; the rows `said` have the `facts` and the `cost`."""
    evidence, metrics = figures.evidence, figures.metrics
    assert metrics is not None and evidence.run is not None
    step_ms = 1e3 * (metrics.typical("step_time_s") or 0.0)
    ms = round(share * step_ms, 3)
    return confirmed(
        facts=texts.facts(said, cost=TEXTS.phrase("cost", ms=ms, step_ms=step_ms, unit="step"), **facts),
        confidence=confidence,
        ranks=ranks,
        victims=tuple(rank for rank in group.ranks if rank not in ranks),
        group=group,
        cost=Cost(ms, "ms per step", share) if ms else None,
        evidence=(EvidenceItem("metrics", evidence.relative(RunPaths(evidence.run.root).metrics), detail),),
    )


def at_place(figures: Figures, place: int) -> tuple[tuple[int, ...], Group]:
    """Return the ranks at a place along pp, and their pipelines."""
    mesh, world = layout(figures.evidence), range(figures.evidence.world_size or 0)
    if mesh is None:
        return (), Group("pp", ())
    ranks = tuple(rank for rank in world if mesh.index("pp", rank) == place)
    return ranks, joint_group(mesh, "pp", ranks)
