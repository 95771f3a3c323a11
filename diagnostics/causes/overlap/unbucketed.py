"""Gradients are reduced after backward, one by one or in a few flat buffers, so no compute overlaps with them."""

from collections import Counter

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.state_calls import MANY, total_bytes
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding, Where

_RANKS_READ = 2
"""Ranks whose records of calls are searched for the line that issues the reductions: all ranks run the same line."""
_OUTSIDE = ("logging", "evaluation")  # Regions whose collectives are not gradient reductions.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the reductions between backward and optimizer."""
    steps = view.reductions
    count = round(steps.typical(lambda step: len(step.after)))
    inside = round(steps.typical(lambda step: len(step.last())))
    # A few next to reductions issued by backward may be of anything; without those they are the gradients'.
    if count < (MANY if inside else 1) or count < inside:
        return _TEXTS.ruled_out(count=count)
    cost = steps.typical(lambda step: shared.bucket_gain(view, step.after, step.backward))
    site, size = _site(view) if view.worth(cost) else None, total_bytes(steps.sample.after)
    row = "default" if count >= MANY else "few"
    shown = _TEXTS.phrase("shown_size" if size else "shown", count=count, size=size)
    line = f"{site.file}:{site.line}" if site else ""
    place, at = (f" ({line})", f" at {line}") if line else ("", "")
    facts = shared.costly(view, cost, _TEXTS, row, count=count, place=place, at=at)
    return shared.judged(view, facts, shown, where=(site,) if site else ())


def _site(view: Overview) -> Where | None:
    """Return the user's line that issued most all_reduce calls, from the records of the first ranks."""
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


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_backward,))
