"""Communication that is not allowed to overlap: on the stream that computes, or waited for at once."""

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import Fact, RankProfile
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.detectors.overlap.decide import confirmed, figure, of_step, ruled_out, too_little
from diagnostics.evidence.model import Evidence

CAUSES = ("overlap.same_stream", "overlap.blocking_wait")
_SMALL_BYTES = 1024
"""Norms, losses and sizes that the next line needs are waited for by nature."""
_SHARE = 0.5
"""Of the communication that has to run so."""
_UNIT_OPS = frozenset({"all_gather", "reduce_scatter"})
"""Of sharded parameters: what waits for them is judged with the units."""


def decide(view: Overview, evidence: Evidence) -> list[Finding]:
    """All causes of this family."""
    if not any(one.calls for one in view.profiles):
        return [ruled_out(cause, "0 collectives in the trace") for cause in CAUSES]
    return [_same_stream(view), _blocking_wait(view)]


def _exposed(view: Overview, one: RankProfile, chosen: set[int]) -> float:
    return sum(exposed for call, _, exposed in view.calls(one) if id(call) in chosen)


def _cost(view: Overview, chosen: dict[int, set[int]]) -> float:
    """Exposed transfer of the chosen calls, ms a step: at most what there is compute to hide it."""
    return view.typical_ms(lambda one: min(_exposed(view, one, chosen[one.rank]), one.window.compute))


def _matters(call: Fact) -> bool:
    size = call.message.size_bytes
    return not size or size > _SMALL_BYTES


def _same_stream(view: Overview) -> Finding:
    cause = "overlap.same_stream"
    if not view.on_device:
        return ruled_out(cause, "work runs on CPU: there are no streams")
    chosen = {one.rank: {id(call) for call in one.calls if call.on_compute and _matters(call)} for one in view.profiles}
    time = {one.rank: sum(c.duration for c in one.calls if id(c) in chosen[one.rank]) for one in view.profiles}
    everything = sum(call.duration for one in view.profiles for call in one.calls)
    share = sum(time.values()) / everything if everything else 0.0
    if share < _SHARE:
        return ruled_out(cause, f"{share:.0%} of communication runs on the compute stream")
    cost = _cost(view, chosen)
    if not view.worth(cost):
        return too_little(view, cause, cost, f"{share:.0%} of communication on the compute stream")
    count = round(view.typical_ms(lambda one: len(chosen[one.rank]) * MS))
    return confirmed(
        view,
        cause,
        f"{count} collectives a {view.unit} run on the stream that computes, so none can overlap: "
        f"up to {of_step(view, cost)}.",
        cost,
        details=[f"{share:.0%} of communication time lies on the compute stream"],
        remedies=[
            Remedy(
                "code",
                "issue the collectives with `async_op=True` (or on a stream of their own) and wait just before their "
                "result is used",
                "kernels on one stream run one after the other",
                f"at most {of_step(view, cost)}",
            )
        ],
    )


def _waited_at_once(view: Overview) -> dict[int, set[int]]:
    """Rank -> ids of the collectives in a phase that compute waits for, without those of sharded units."""
    sharded = any(call.message.op == "reduce_scatter" for one in view.profiles for call in one.calls)
    return {
        one.rank: {
            id(call)
            for call in one.calls
            if call.waited
            and not call.on_compute
            and call.phase in ("forward", "backward")
            and _matters(call)
            and not (sharded and call.message.op in _UNIT_OPS)
        }
        for one in view.profiles
    }


def _blocking_wait(view: Overview) -> Finding:
    cause = "overlap.blocking_wait"
    if not view.on_device:
        return ruled_out(cause, "work runs on CPU: waits leave no mark there")
    if not any(call.phase for one in view.profiles for call in one.calls):
        return ruled_out(cause, "no collective lies between two kernels of one phase that the trace could tell")
    chosen = _waited_at_once(view)
    count = view.typical_ms(lambda one: len(chosen[one.rank]) * MS)
    cost = _cost(view, chosen)
    if count < 1 or not view.worth(cost):
        return too_little(view, cause, cost, f"{count:.0f} collectives waited for at once")
    ops = sorted({call.message.op for one in view.profiles for call in one.calls if id(call) in chosen[one.rank]})
    return confirmed(
        view,
        cause,
        f"Compute stops within forward or backward for {count:.0f} collectives a {view.unit} ({', '.join(ops)}) and "
        f"goes on only when they are over: up to {of_step(view, cost)}.",
        cost,
        details=[f"{count:.0f} collectives a {view.unit} with nothing beside them, exposed {figure(cost)} ms"],
        confidence=0.8,
        remedies=[
            Remedy(
                "code",
                "issue the collective earlier with `async_op=True` and call `wait()` just before its result is used; "
                "for tensor parallelism, sequence parallelism or asynchronous TP; for all_to_all, two micro-batches",
                "compute that does not need the result can run meanwhile",
                f"at most {of_step(view, cost)}",
            )
        ],
    )
