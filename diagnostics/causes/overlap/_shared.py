"""What the causes of a slow step share: when nothing is decided, the cost of a cause, and its remedy."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from diagnostics.analysis.step_profile.overview import SHARE, Overview, overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Where
from diagnostics.contract.formatting import Phrase

TEXTS = Texts(__file__)
_SMALL_BYTES = 1024
"""Norms, losses and sizes that the next line needs are waited for by nature."""
_CUT_CONFIDENCE = 0.45
"""Of whatever a trace shows that was not read to its end: a suspicion."""
_UNSPLIT_CONFIDENCE = 0.7
"""Of a cost that may hold waiting for late ranks as well."""
Guard = Callable[[Overview], Finding | None]
"""Returns the answer where the question does not arise, or the evidence cannot answer it."""


class StepCost(Struct, frozen=True):
    """What a cause costs of a step."""

    ms: float
    """At most the step."""
    step_ms: float
    unit: Literal["step", "window"]

    def __str__(self) -> str:
        """Return `41 ms of 180 ms a step`."""
        return str(TEXTS.phrase("cost", ms=self.ms, step_ms=self.step_ms, unit=self.unit))


class Costly(Struct, frozen=True):
    """The figures of a cause that costs time of the step, whether or not it is worth a finding."""

    cost: StepCost
    texts: Texts
    row: str
    """Beside the usual texts it has `seen`: what was seen, for a cost that is not worth a finding."""
    figures: dict[str, Any]
    """Its cost among them."""


def costly(view: Overview, ms: float, texts: Texts, row: str = "usual", /, **figures: Any) -> Costly:
    """Return the facts of a cause that costs so many ms of a step, at most the step, worded by a row of its texts."""
    cost = StepCost(max(0.0, min(ms, view.step_ms)), view.step_ms, view.unit)
    is_dtk = view.run is not None and bool(view.run.config) and not view.library  # Which has none of dtk's keys.
    return Costly(cost, texts, row, figures | {"cost": cost, "is_dtk": is_dtk})


def step_cause(
    file: str,
    decide: Callable[[Overview], Finding],
    unless: Sequence[Guard] = (),
    despite_instrument: bool = False,
    untraced: Guard = lambda view: None,
) -> Cause[Overview]:
    """Return a cause that `decide` decides where the traces can be used and no guard answers before it.

    Without a trace `untraced` may answer, by what logs say.
    Nothing is concluded from traces that an instrument spoilt, but the instrument.
    """

    def decide_usable(view: Overview) -> Finding:
        if view.unusable and not (despite_instrument and view.unusable == "instrumented"):
            answer: Finding | None = untraced(view) if not view.profiles else None
            answer = answer or TEXTS.undecided(view.unusable)
        else:
            answer = next(filter(None, (guard(view) for guard in unless)), None)
        return answer or decide(view)

    return declared(file, overview, decide_usable)


def judged(
    view: Overview,
    facts: Costly,
    *details: Phrase,
    ranks: tuple[int, ...] | None = None,
    victims: tuple[int, ...] = (),
    confidence: float = 0.9,
    where: tuple[Where, ...] = (),
    of_transfer: bool = True,
) -> Finding:
    """Confirm a cause whose cost is worth it, and rule it out otherwise.

    Args:
        view: all traces.
        facts: what it costs and what was seen.
        details: what the trace shows, for the evidence.
        ranks: to blame; default: all that were traced.
        victims: ranks that wait for them.
        confidence: 0 to 1.
        where: the source line in question.
        of_transfer: the cost is exposed transfer, which holds waiting as well while not all ranks were traced.
    """
    if not view.worth(facts.cost.ms):
        seen = facts.texts.phrase(f"{facts.row}.seen", **facts.figures)
        return TEXTS.ruled_out("cheap", seen=seen, cost=facts.cost, share=SHARE)
    items = list(details)
    if of_transfer and not view.split:
        items.append(TEXTS.phrase("unsplit", why=unsplit(view)))
        confidence = min(confidence, _UNSPLIT_CONFIDENCE)
    if any(profile.is_cut for profile in view.profiles):
        items.append(TEXTS.phrase("cut"))
        confidence = min(confidence, _CUT_CONFIDENCE)
    files = {profile.rank: profile.file for profile in view.profiles}
    file = files.get(ranks[0] if ranks else -1, view.profiles[0].file)
    return Finding(
        status="confirmed",
        facts=facts.texts.facts(facts.row, **facts.figures),
        confidence=confidence,
        ranks=view.ranks if ranks is None else ranks,
        victims=victims,
        where=where,
        cost=Cost(round(facts.cost.ms, 3), "ms per step" if view.unit == "step" else "ms per window"),
        evidence=tuple(EvidenceItem("trace", file, item) for item in items),
    )


def no_collectives(view: Overview) -> Finding | None:
    """Return the answer for a trace without collectives."""
    return None if view.calls else TEXTS.ruled_out("no_collectives")


def no_backward(view: Overview) -> Finding | None:
    """Return the answer for a trace that does not show when backward runs."""
    return None if view.reductions else no_collectives(view) or phases_unknown()


def no_units(view: Overview) -> Finding | None:
    """Return the answer for a job without sharded units, or whose units the trace does not show."""
    units = view.units
    if not units.sharded:
        return TEXTS.ruled_out("unsharded")
    if not units.phases:
        return phases_unknown()
    if not any(batch.gathers for batches in units.of_rank.values() for batch in batches):
        return TEXTS.ruled_out("no_gathers")
    return None


def on_cpu(why: str) -> Guard:
    """Return a guard against causes that do not exist on CPU, by the row that says why."""
    return lambda view: None if view.on_device else TEXTS.ruled_out(why)


def phases_unknown() -> Finding:
    """Return that the purpose of collectives is not known."""
    return TEXTS.undecided("no_phases")


def unsplit(view: Overview) -> Phrase:
    """Return why waiting cannot be told from transfer."""
    row = "one_rank" if len(view.profiles) < 2 else "unmatched" if view.skew.complete else "not_all"
    return TEXTS.phrase(row)


def exposed_ms(view: Overview, chosen: Callable[[CallProfile], bool]) -> float:
    """Return the exposed transfer of the chosen calls, ms a step: at most what there is compute to hide it."""
    return view.typical_ms(
        lambda profile: min(
            sum(call.exposed_transfer for call in profile.calls if chosen(call)), profile.window.compute
        )
    )


def matters(call: CallProfile) -> bool:
    """Return whether a collective moves more than a few numbers that the next line needs."""
    size = call.message.size_bytes
    return not size or size > _SMALL_BYTES


def others(view: Overview, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the traced ranks that are not among these."""
    return tuple(rank for rank in view.ranks if rank not in ranks)
