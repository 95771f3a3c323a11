"""Gradients are reduced one by one after backward, so no compute runs beside them."""

from collections import Counter
from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.reductions import MANY, total_bytes
from diagnostics.causes.overlap._buckets import bucket_gain
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import (
    Costly,
    NotIt,
    cost_of,
    judged,
    no_backward,
    ruled_out,
    step_cause,
)
from diagnostics.contract.findings import Finding, Remedy, Where
from diagnostics.contract.formatting import bytes_text

_RANKS_READ = 2
"""Ranks whose records of calls are searched for the line that issues the reductions: all ranks run the same line."""
_OUTSIDE = ("logging", "evaluation")
"""Regions whose collectives are no reductions of gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneByOne(Costly):
    """Reductions between backward and optimizer."""

    count: int
    site: Where | None
    """The line that issues them, where records of calls tell."""

    def seen(self) -> str:
        """Return what was seen."""
        return f"{self.count} reductions after backward"

    def summary(self) -> str:
        """Return what is wrong."""
        place = f" ({self.site.file}:{self.site.line})" if self.site else ""
        return (
            f"{self.count} gradients are reduced one by one after backward{place}, with nothing beside them: "
            f"up to {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        place = f" at {self.site.file}:{self.site.line}" if self.site else ""
        return self.cost.code(
            f"remove the loop of all_reduce{place} and wrap the model in DistributedDataParallel",
            "it reduces buckets of gradients while backward still runs",
        )


@dataclass(frozen=True, slots=True)
class FewAfterBackward(NotIt):
    """How many reductions follow backward."""

    count: int

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"{self.count} reductions between backward and optimizer"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the reductions between backward and optimizer."""
    cause = CAUSE.id
    if answer := no_backward(view, cause):
        return answer
    steps = view.reductions
    count = round(steps.typical(lambda step: len(step.after)))
    if count < MANY or count < round(steps.typical(lambda step: len(step.last()))):
        return [ruled_out(cause, FewAfterBackward(count))]
    cost = cost_of(view, steps.typical(lambda step: bucket_gain(view, step.after, step.backward)))
    site = _site(view) if view.worth(cost.ms) else None
    size = total_bytes(steps.sample.after)
    return judged(
        view,
        cause,
        OneByOne(cost=cost, count=count, site=site),
        f"{count} reductions{' of ' + bytes_text(size) if size else ''} a step, all issued after backward",
        where=(site,) if site else (),
    )


def _site(view: Overview) -> Where | None:
    """Return the user's line that issued most all_reduces, from the records of calls of the first ranks."""
    sites: Counter[tuple[int, str, int, str]] = Counter()
    ranks: set[int | None] = set()
    for file in view.records:
        if len(ranks | {file.rank}) > _RANKS_READ:
            break
        try:
            dumps = file.load()
        except (OSError, ValueError):
            continue
        ranks.add(file.rank)
        for dump in dumps:
            for call in dump.calls:
                if call.wire.op == "all_reduce" and call.site is not None and call.region not in _OUTSIDE:
                    rank = -1 if dump.rank is None else dump.rank
                    sites[rank, call.site.file, call.site.line, call.site.function] += 1
    if not sites:
        return None
    (rank, file_name, line, function), _ = min(sites.items(), key=lambda item: (-item[1], item[0]))
    return Where(rank if rank >= 0 else None, file_name, line, function, "all_reduce")


CAUSE = step_cause(
    id="overlap.unbucketed",
    title="gradients are reduced one by one after backward",
    branch="slow.reduction",
    decide=decide,
    decided_from="traces: the reductions between backward and optimizer; records of calls for the line",
    remedy="DDP, or flatten the gradients into buckets",
    example=example("unbucketed"),
)
