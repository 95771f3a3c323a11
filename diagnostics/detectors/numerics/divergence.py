"""Decides `numeric.rank_divergence`: replicas that should hold the same parameters and do not.

A dtk run compares them bit by bit every `record.replica_hash_every` steps; this reads what it found.
"""

from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Group, Remedy
from diagnostics.evidence.model import Evidence, RunEvidence

CAUSE = "numeric.rank_divergence"
REPLICATED = frozenset({"ddp", "zero1", "hsdp"})
"""Strategies under which some parameters are on more than one rank."""
SHARDED = frozenset({"single", "dp", "fsdp", "zero2", "zero3"})


def decide(evidence: Evidence) -> Finding:
    """One finding, whatever there is."""
    run = evidence.run
    if run is None:
        missing = "a dtk run compares replicas by itself (record.replica_hash_every)"
        return _open("no record compares the parameters of the ranks", missing)
    drifted = [(rank, event) for rank, event in _named(run, "replica_divergence") if _whole(event)]
    if drifted:
        return _drifted(evidence, run, drifted)
    equal = [event["step"] for _, event in _named(run, "replicas_equal") if isinstance(event.get("step"), int)]
    if equal:
        times = f"in all {len(equal)} comparisons, last" if len(equal) > 1 else "when they were compared,"
        summary = f"The replicas were equal bit for bit {times} after step {max(equal)}."
        return Finding(
            cause=CAUSE, status="ruled_out", summary=summary, measured=f"0 of {len(equal)} comparisons differ"
        )
    strategy = run.get("strategy.name")
    if strategy in SHARDED or (strategy in REPLICATED and evidence.world_size == 1):
        summary = f"Under strategy {strategy} no two ranks hold the same parameters."
        return Finding(cause=CAUSE, status="ruled_out", summary=summary, measured="no replicas")
    if run.get("record.level") == "off" or not run.get("record.replica_hash_every", 0):
        return _open("replicas were not compared", "record=light record.replica_hash_every=100")
    return _open("the run ended, or broke with NaN, before the replicas were compared", "record.replica_hash_every=10")


def _open(what: str, missing: str) -> Finding:
    return Finding(cause=CAUSE, status="undecided", summary=f"Not decided: {what}.", missing=missing)


def _named(run: RunEvidence, name: str) -> list[tuple[int, dict[str, Any]]]:
    return [
        (rank, event) for rank, events in sorted(run.events.items()) for event in events if event.get("name") == name
    ]


def _whole(event: dict[str, Any]) -> bool:
    """Whether the event has the fields of one; it may be of a damaged file."""
    lists = (event.get("ranks"), event.get("group"))
    return isinstance(event.get("step"), int) and all(
        isinstance(one, list) and all(isinstance(rank, int) for rank in one) for one in lists
    )


def _drifted(evidence: Evidence, run: RunEvidence, drifted: list[tuple[int, dict[str, Any]]]) -> Finding:
    step = min(event["step"] for _, event in drifted)
    first = [(rank, event) for rank, event in drifted if event["step"] == step]
    odd = tuple(sorted({rank for _, event in first for rank in event["ranks"]}))
    group = tuple(sorted({rank for _, event in first for rank in event["group"]}))
    tie = any(event.get("tie") for _, event in first)
    equal = [e["step"] for _, e in _named(run, "replicas_equal") if isinstance(e.get("step"), int) and e["step"] < step]
    since = f"between step {max(equal)} and step {step}" if equal else f"not later than step {step}"
    where = next((event for rank, event in first if rank in odd and event.get("parameter")), {})
    place = f", first in {where['parameter']} ({_share(where)} parameters)" if where else ""
    return Finding(
        cause=CAUSE,
        status="confirmed",
        summary=_summary(odd, tie, since, place),
        confidence=0.97,
        ranks=odd,
        group=Group("replicas", group, "ranks that should hold the same parameters"),
        step=step,
        cost=_cost(run, step),
        evidence=tuple(_item(evidence, run, rank, event) for rank, event in first[:8]),
        remedies=_remedies(odd, tie),
        measured=f"{len(odd)} of {len(group)} replicas differ at step {step}",
    )


def _summary(odd: tuple[int, ...], tie: bool, since: str, place: str) -> str:
    listed = ", ".join(map(str, odd[:8])) + (f" and {len(odd) - 8} more" if len(odd) > 8 else "")
    if tie:
        return f"The replicas on ranks {listed} drifted apart {since}{place}; it is a tie, neither can be called right."
    who = f"Rank {listed}" if len(odd) == 1 else f"Ranks {listed}"
    return f"{who} drifted apart from the other replicas {since}{place}."


def _share(event: dict[str, Any]) -> str:
    return f"{event.get('parameters_affected')} of {event.get('parameters_seen')}"


def _cost(run: RunEvidence, step: int) -> Cost | None:
    last = run.status.step if run.status else None
    return Cost(float(last - step + 1), "steps lost") if isinstance(last, int) and last >= step else None


def _item(evidence: Evidence, run: RunEvidence, rank: int, event: dict[str, Any]) -> EvidenceItem:
    parameter = event.get("parameter")
    detail = f"replica_divergence at step {event['step']}{f', first in {parameter}' if parameter else ''}"
    return EvidenceItem("events", evidence.relative(RunPaths(run.root).events(rank)), detail)


def _remedies(odd: tuple[int, ...], tie: bool) -> tuple[Remedy, ...]:
    who = "of either rank" if tie else f"of rank {', '.join(map(str, odd[:8]))}"
    code = Remedy(
        "code",
        "look for writes to parameters, optimizer steps or loads that only some ranks do (if rank == ...), and for "
        "gradients that are not reduced (no_sync left open, parameters outside DDP)",
        "replicas that get the same gradient and the same update stay equal bit for bit",
    )
    device = Remedy("environment", f"check the device {who} (ECC errors: nvidia-smi -q -d ECC, dmesg)", "bits can flip")
    return code, device
