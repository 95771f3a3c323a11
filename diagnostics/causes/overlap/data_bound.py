"""The step waits for the data loader."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import step_cause
from diagnostics.contract.findings import CERTAIN, LIKELY, Cost, EvidenceItem, Finding, confirmed
from diagnostics.evidence.logs.steps import LEAST

_PRINTED_SHARE = 0.25  # Share of printed step time.
_RECURS = 2  # Minimum number of lines that show a wait, for `LEAST` steps together, if only few lines are printed.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the idle time in the data loader."""
    return judged_idle(view, idle(view, "data"), CERTAIN, _TEXTS)


def printed(view: Overview) -> Finding | None:
    """Decide from the times printed in a log."""
    for file, times in view.data_times:
        waits = [count for _, step, data, count in times if data >= _PRINTED_SHARE * step]
        if len(times) < LEAST and (len(waits) < _RECURS or sum(waits) < LEAST):
            continue  # Few steps may wait at the start of an epoch only.
        steps, step_s, data_s = map(sum, zip(*((n, n * step, n * data) for _, step, data, n in times), strict=True))
        if not 0 < data_s <= step_s:
            continue
        figures = {"share": data_s / step_s, "steps": round(steps), "data_s": data_s, "step_s": step_s}
        if figures["share"] < _PRINTED_SHARE:
            return _TEXTS.ruled_out("few_printed", **figures)
        line, _, waited_s, _ = max(times, key=lambda row: row[2])
        return confirmed(
            facts=_TEXTS.facts("printed", **figures, most_s=waited_s),
            confidence=LIKELY,
            cost=Cost(round(data_s / steps * 1000, 3), "ms per step"),
            evidence=(EvidenceItem("log", file, _TEXTS.phrase("slowest", waited_s=waited_s), line),),
        )
    return None


CAUSE = step_cause(__file__, decide, untraced=printed)
