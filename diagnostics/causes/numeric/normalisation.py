"""`numeric.normalisation`: one of two runs divides its loss or its gradient by a different number."""

from diagnostics.analysis.printed_pairs import multiples
from diagnostics.analysis.printed_steps import PrintedSteps, printed_steps
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import LIKELY, EvidenceItem, Finding, confirmed

_TEXTS = Texts(__file__)


def decide(job: PrintedSteps) -> Finding:
    """Decide from two runs that print the same steps with a constant ratio that is a whole number."""
    case = next(multiples(job), None)
    if case is None:
        return _TEXTS.undecided()
    figure, factor, *runs = case
    items = tuple(EvidenceItem("log", run.file, f"{figure} {run.rows[0][1]:g}", run.rows[0][3]) for run in runs)
    name = "loss" if figure == "loss" else "gradient norm"
    facts = _TEXTS.facts(name=name, factor=factor, first=runs[0].file, other=runs[1].file)
    return confirmed(facts=facts, confidence=LIKELY, evidence=items)


CAUSE = declared(__file__, printed_steps, decide)
