"""Shared by the causes of a slow step: guards, the cost of a cause, its remedy, and the gain of other buckets."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from diagnostics.analysis.step_profile.overview import MS, SHARE, Overview, overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.state_calls import total_bytes
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract import findings
from diagnostics.contract.causes import Cause
from diagnostics.contract.formatting import Phrase
from diagnostics.contract.grouping import grouped

TEXTS = Texts(__file__)
MIB = 1 << 20  # Bytes.
DEFAULT_BUCKET_BYTES = 25 * MIB  # Default `bucket_cap_mb` of DistributedDataParallel, in bytes.
_LEAST_BUCKETS = 4  # Minimum number of buckets, so that the last one, which nothing hides, is small.
_LEAST_CAP_MB = 0.05  # Minimum `bucket_cap_mb` that is proposed: smaller buckets cost more latency than they hide.
_SMALL_BYTES = 1024
"""Collectives up to this size (norms, losses, sizes) are always waited for, as the next line needs the result."""
Guard = Callable[[Overview], findings.Finding | None]
"""Returns a finding if the cause does not apply or the evidence cannot decide it; otherwise None."""


class StepCost(Struct, frozen=True):
    """Cost of a cause as part of a step."""

    ms: float
    """Cost in ms, at most the duration of the step."""
    step_ms: float
    unit: Literal["step", "window"]

    @property
    def share(self) -> float:
        """Share of the step, 0 to 1."""
        return self.ms / self.step_ms if self.step_ms else 0.0

    def __str__(self) -> str:
        """Return a text such as `41 ms of 180 ms per step`."""
        return str(TEXTS.phrase("cost", ms=self.ms, step_ms=self.step_ms, unit=self.unit))


class Costly(Struct, frozen=True):
    """The figures of a cause that costs step time, whether or not the cost is worth a finding."""

    cost: StepCost
    texts: Texts
    row: str
    """Row of `texts`; its `seen` describes the observation if the cost is not worth a finding."""
    figures: dict[str, Any]
    """Values for the row, including the cost."""


def costly(view: Overview, ms: float, texts: Texts, row: str = "default", /, **figures: Any) -> Costly:
    """Return the facts of a cause that costs `ms` of a step (limited to the step), with the texts of a row."""
    cost = StepCost(max(0.0, min(ms, view.step_ms)), view.step_ms, view.unit)
    is_dtk = view.run is not None and bool(view.run.config) and not view.traits.library  # A library has no dtk keys.
    return Costly(cost, texts, row, figures | {"cost": cost, "is_dtk": is_dtk})


def step_cause(
    file: str,
    decide: Callable[[Overview], findings.Finding],
    unless: Sequence[Guard] = (),
    despite_instrument: bool = False,
    untraced: Guard = lambda view: None,
) -> Cause[Overview]:
    """Return a cause decided by `decide` if the traces are usable and no guard returns a finding first.

    Without a trace, `untraced` may decide from logs.
    Traces distorted by an instrument decide no cause except the one with `despite_instrument`.
    """

    def decide_usable(view: Overview) -> findings.Finding:
        if view.unusable and not (despite_instrument and view.unusable == "instrumented"):
            answer: findings.Finding | None = untraced(view) if not view.profiles else None
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
    confidence: float = findings.CERTAIN,
    where: tuple[findings.Where, ...] = (),
    of_transfer: bool = True,
    least: float = SHARE,
) -> findings.Finding:
    """Confirm a cause if it costs at least that share of the step, and rule it out otherwise.

    All traced ranks are blamed by default. `of_transfer`: the cost is exposed transfer, with waiting if not all are.
    """
    if facts.cost.share < least or not facts.cost.ms:
        seen = facts.texts.phrase(f"{facts.row}.seen", **facts.figures)
        return TEXTS.ruled_out("cheap", seen=seen, cost=facts.cost, share=least)
    items = list(details)
    if of_transfer and not view.split:
        items.append(TEXTS.phrase("unsplit", why=unsplit(view)))
        confidence = min(confidence, findings.POSSIBLE)  # The cost may include waiting for late ranks.
    if any(profile.is_cut for profile in view.profiles):
        items.append(TEXTS.phrase("cut"))
        confidence = min(confidence, findings.SUSPECTED)  # It remains a suspicion.
    files = {profile.rank: profile.file for profile in view.profiles}
    file = files.get(ranks[0] if ranks else -1, view.profiles[0].file)
    unit: findings.Unit = "ms per step" if view.unit == "step" else "ms per window"
    return findings.confirmed(
        facts=facts.texts.facts(facts.row, **facts.figures),
        confidence=confidence,
        ranks=view.ranks if ranks is None else ranks,
        victims=victims,
        where=where,
        cost=findings.Cost(round(facts.cost.ms, 3), unit, round(facts.cost.share, 4)),
        evidence=tuple(findings.EvidenceItem("trace", file, item) for item in items),
    )


def unsized(view: Overview, ms: float, count: int) -> findings.Finding:
    """Return undecided: the sizes of `count` reductions are not known, so neither is which other sizes would help."""
    return TEXTS.undecided("unsized", count=count, cost=StepCost(min(ms, view.step_ms), view.step_ms, view.unit))


def no_collectives(view: Overview) -> findings.Finding | None:
    """Return a finding for a trace without collectives; otherwise None."""
    return None if view.calls else TEXTS.ruled_out("no_collectives")


def no_backward(view: Overview) -> findings.Finding | None:
    """Return a finding for a trace that does not show when backward runs; otherwise None."""
    return None if view.reductions else no_collectives(view) or TEXTS.undecided("no_phases")


def no_units(view: Overview) -> findings.Finding | None:
    """Return a finding for a job without sharded units, or with units that are not in the trace; otherwise None."""
    units = view.units
    if not units.sharded:
        return TEXTS.ruled_out("unsharded")
    if not units.phases:
        return TEXTS.undecided("no_phases")
    if not any(batch.gathers for batches in units.of_rank.values() for batch in batches):
        return TEXTS.ruled_out("no_gathers")
    return None


def on_cpu(why: str) -> Guard:
    """Return a guard for causes that do not exist on CPU; `why` is the row with the reason."""
    return lambda view: None if view.on_device else TEXTS.ruled_out(why)


def unsplit(view: Overview) -> Phrase:
    """Return why waiting cannot be distinguished from transfer."""
    row = "one_rank" if len(view.profiles) < 2 else "unmatched" if view.skew.complete else "not_all"
    return TEXTS.phrase(row)


def exposed_ms(view: Overview, chosen: Callable[[CallProfile], bool]) -> float:
    """Return the exposed transfer of the chosen calls in ms per step, at most the compute available to hide it."""
    return view.typical_ms(
        lambda profile: min(
            sum(call.exposed_transfer for call in profile.calls if chosen(call)), profile.window.compute
        )
    )


def matters(call: CallProfile) -> bool:
    """Return whether a collective moves more than a few values that the next line needs."""
    size = call.message.size_bytes
    return not size or size > _SMALL_BYTES


def others(view: Overview, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the traced ranks that are not among these."""
    return tuple(rank for rank in view.ranks if rank not in ranks)


def bucket_cap(view: Overview, size_bytes: int) -> tuple[float, str]:
    """Return the recommended `bucket_cap_mb`, and ` (bucket_cap_mb is 25)` or empty if the configuration has none."""
    now = view.declared("strategy.bucket_cap_mb")
    return good_cap_mb(size_bytes), f" (bucket_cap_mb is {now:g})" if isinstance(now, int | float) else ""


def bucket_gain(view: Overview, calls: Sequence[CallProfile], backward: int) -> float:
    """Return the gain of optimal buckets in ms; `backward` is the duration of the backward pass in ns."""
    if not calls:
        return 0.0
    transfer = sum(call.transfer for call in calls)
    fixed = min(view.latency_ns, transfer / len(calls))
    pure = max(0.0, transfer - fixed * len(calls))
    best = exposed_in_buckets(pure, fixed, good_buckets(total_bytes(calls)), backward)
    return max(0.0, sum(call.exposed_transfer for call in calls) - best) / MS


def portions(count: int, what: str, size_bytes: int) -> Phrase:
    """Return `120 reductions of 1 MiB on average`; a size of 0 bytes means unknown."""
    row = "portions" if size_bytes else "portions_unknown"
    return TEXTS.phrase(row, count=count, what=what, size=size_bytes / max(1, count))


def most_exposed(view: Overview) -> Phrase:
    """Return the operation with the longest exposed transfer, such as `120 all_reduce of 1 MiB on average`."""
    by_op = grouped((call.message.op, call) for call in view.calls)
    op, calls = max(by_op.items(), key=lambda item: sum(call.exposed_transfer for call in item[1]))
    count = round(view.typical_count(lambda profile: sum(call.message.op == op for call in profile.calls)))
    return portions(count, op, total_bytes(calls) * count // len(calls))


def good_buckets(total_bytes: int) -> int:
    """Return the best number of gradient buckets: those of DDP's default size, and at least `_LEAST_BUCKETS`."""
    return max(_LEAST_BUCKETS, math.ceil(total_bytes / DEFAULT_BUCKET_BYTES))


def good_cap_mb(total_bytes: int) -> float:
    """Return the `bucket_cap_mb` that results in the number of buckets of `good_buckets`; for 0 bytes the default."""
    cap = total_bytes / MIB / good_buckets(total_bytes) if total_bytes else DEFAULT_BUCKET_BYTES / MIB
    return float(round(cap)) if cap >= 1 else round(max(cap, _LEAST_CAP_MB), 2)


def exposed_in_buckets(transfer: float, latency: float, buckets: int, beside: float) -> float:
    """Return the exposed time of a transfer cut into equal parts that become ready evenly during compute.

    `transfer` excludes `latency`, the fixed time of each part; the last part is ready when the compute `beside` ends.
    """
    each = transfer / buckets + latency
    done = 0.0
    for n in range(1, buckets + 1):
        done = max(done, beside * n / buckets) + each
    return max(0.0, done - beside)


def exposed_in_units(transfer: float, latency: float, units: int, beside: float) -> float:
    """Return the exposed time of units prefetched one ahead of compute; the first gather is always exposed."""
    each, work = transfer / units + latency, beside / units
    return each + (units - 1) * max(0.0, each - work)
