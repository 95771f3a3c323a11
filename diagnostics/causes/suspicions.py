"""Estimates the probability of each cause if a log confirms none, from the likelihood ratios of its `suspected`.

The odds of a cause are its share of known hangs times the ratio of each clue found in the log (naive Bayes).
"""

from collections.abc import Collection, Sequence
from functools import cache
from math import inf, prod
from typing import Literal

from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.analysis.symptoms.state import TRANSPORT, Symptoms, Waiting
from diagnostics.causes.registry import built_in
from diagnostics.contract.causes import Culprits, Suspected
from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.contract.findings import Finding, Suspicion, text_of
from diagnostics.contract.formatting import UNNAMED, filled
from diagnostics.evidence.calls import ROOTED
from diagnostics.evidence.model import CLAUSE, shortened
from diagnostics.evidence.readers import process

MOST = 3  # Maximum number of suspicions in a report.
LEAST = 0.12  # Minimum probability; below it a suspicion carries no information.
_WARM = 20  # Number of completed calls from which the start-up of a group is certainly over.
SCALAR = 16  # Maximum number of elements of a metric, a flag or a barrier; a gradient or a shard has thousands.
_MANY = 10  # Requests of the size that failed that would fit into unused memory: then its pieces are all smaller.
_LARGE = 0.15  # Share of memory that is unused, or outside PyTorch, from which it is suspected; see `memory.non_torch`.
_LEAST_SIZE = 100  # Minimum size that is compared: those of metrics and flags are close by chance.
_CLOSE = 0.1
"""Share of the larger size by which two sizes of one call differ at most; sizes of two calls rarely come so close."""
_OVERRUN = 3  # Multiple of its timeout that a call waited, which shows that not even the watchdog thread could run.
_NEVER_S = 2 * 86_400  # Timeout that no run waits for: the wait ended because a connection broke.
_SHORT_S = 10  # Timeout that the set-up of a communicator or a slow step exceeds; the defaults are 600 s and more.
TABLE, _TEXT = table_beside(__file__), patterns_beside(__file__, "patterns")
_DECIDE, _FIT = TABLE["decide"], TABLE["fit"]


@cache
def suspected_of(what: Literal["end", "memory"]) -> dict[str, Suspected]:
    """Return the causes that may explain the end of a job, or what took a device's memory, by id."""
    rows = {cause.id: cause.suspected for cause in built_in() if cause.suspected is not None}
    return {cause: row for cause, row in rows.items() if row.explains == what}


def suspicions(symptoms: Symptoms, ruled_out: Collection[str] = ()) -> tuple[Suspicion, ...]:
    """Return the likeliest causes that are supported by a clue, at most `MOST`, the likeliest first."""
    signs, culprits, suspected = clues(symptoms), _culprits(symptoms), list[Suspicion]()
    other = symptoms.library != "nccl"
    no_dumps = other or process.KIND in symptoms.kinds  # A running job can be watched instead.
    likely = sorted(((share, cause) for cause, share in probabilities(signs, ruled_out).items()), reverse=True)
    for probability, cause in likely:
        row = suspected_of("end")[cause]
        speaks_for = tuple(text for name, text in signs.items() if row.clues.get(name, 1.0) > 1)
        against = tuple(text for name, text in signs.items() if row.clues.get(name, 1.0) < 1)
        if speaks_for and probability >= LEAST and len(suspected) < MOST:
            ranks, decide = tuple(rank for rank in culprits[row.ranks] if rank > UNNAMED), row.decide
            of_ray = decide in ("ends", "killed") and symptoms.worker_died
            of_nccl = (decide == "dumps" and no_dumps) or (decide in ("transport", "device") and other)
            is_logged = decide == "transport" and "nccl_init" in symptoms.kinds  # What it would ask for is there.
            decide = _DECIDE["ray" if of_ray else "watch" if of_nccl else "native" if is_logged else decide]
            suspected.append(Suspicion(cause, round(probability, 2), ranks, speaks_for, against, decide))
    return tuple(suspected)


def probabilities(signs: Collection[str], ruled_out: Collection[str] = ()) -> dict[str, float]:
    """Return the probability of each cause given these clues; the rest to 1 are causes that are never suspected."""
    rows = {cause: row for cause, row in suspected_of("end").items() if cause not in ruled_out}
    fitted = {cause: _odds(row, signs) ** _FIT["exponent"] for cause, row in rows.items()}
    whole = sum(fitted.values()) + _FIT["other"]
    return {cause: value / whole for cause, value in fitted.items()}


def _odds(row: Suspected, signs: Collection[str]) -> float:
    return prod((row.clues.get(name, 1.0) for name in signs), start=row.share)


def of_memory(records: Sequence[RanOut], steps: int = 0) -> tuple[Suspicion, ...]:
    """Return likely consumers of device memory if its figures do not show them; `steps` steps were printed."""
    record = next((record for record in records if record.device == "cuda"), None)
    if record is None:
        return ()
    reserved, outside, allocated = record.reserved_bytes or 0, record.outside_bytes or 0, record.allocated_bytes
    unused = (record.unused_bytes or 0) / reserved if reserved else 0.0
    used, requested = (record.total_bytes or 0) - (record.free_bytes or 0), record.requested_bytes or 0
    fits = unused >= _LARGE and requested <= (record.unused_bytes or 0) + (record.free_bytes or 0)
    many, alone = (record.unused_bytes or 0) >= _MANY * requested > 0, requested > used > 0
    signs = {"alone": alone, "steps": steps and not alone, "much_unused": fits and many, "unused": fits and not many}
    signs |= {"updates": record.updates, "outside": outside > _LARGE * (record.total_bytes or outside)}
    tensors = filled(TABLE["texts"]["tensors" if allocated else "no_fit"], {"allocated": allocated})
    figures = {"tensors": tensors, "steps": steps, "unused": unused, "outside": outside}
    figures |= {"requested": requested, "used": used}
    rows = suspected_of("memory")
    other = _TEXT["no_history"].search(str(record.item.detail)) is not None
    odds = {cause: _odds(row, [name for name in row.clues if signs[name]]) for cause, row in rows.items()}
    whole, likely = sum(odds.values()) + _FIT["other_memory"], []
    for cause, row in rows.items():
        if text := row.says.get(next((name for name in row.clues if signs[name]), "default")):
            likely.append((odds[cause] / whole, cause, filled(text, figures), row.decide))
    return tuple(
        Suspicion(cause, round(share, 2), (), (text,), (), _DECIDE["allocated" if other else decide])
        for share, cause, text, decide in sorted(likely, reverse=True)[:MOST]
    )


def of_finding(finding: Finding) -> Suspicion:
    """Return a suspected finding as a suspicion; without other evidence, its remedy shows the cause if it helps."""
    text = text_of(finding)
    decide = text.missing or next((f"try: {remedy.change}" for remedy in text.remedies), "")
    return Suspicion(finding.cause, finding.confidence, finding.ranks, (text.summary,), (), decide)


def clues(symptoms: Symptoms) -> dict[str, str]:
    """Return the clues found in a log: name in `suspicions.yaml` -> description, in the table's order."""
    signs = _of_call(symptoms.longest) | _of_ranks(symptoms) | _of_libraries(symptoms)
    return {name: filled(text, {"it": signs[name]}) for name, text in TABLE["says"].items() if signs.get(name)}


def _culprits(symptoms: Symptoms) -> dict[Culprits, tuple[int, ...]]:
    """Return the ranks that a cause would blame."""
    few = symptoms.at_other_calls if symptoms.by_call.has_majority else ()
    behind = symptoms.behind or symptoms.absent or few or symptoms.without_report or symptoms.mismatched
    behind = symptoms.by_position[0].ranks if symptoms.by_position and not behind else behind
    silent = (
        symptoms.unanswered
        or symptoms.unlisted
        or symptoms.departed
        or (symptoms.silent if len(symptoms.silent) <= len(symptoms.longest.ranks) else ())
    )
    return {"nobody": (), "behind": behind, "silent": silent, "stalled": symptoms.broken or behind or silent}


def _of_call(wait: Waiting) -> dict[str, object]:
    """Return each clue in the call that most ranks wait in: false, or the values for its text."""
    seq, numel = wait.seq or 0, wait.numel or 0
    done = wait.completed if wait.completed is not None else seq - 1
    ahead = (wait.enqueued or 0) - seq
    is_scalar = wait.numel is not None and numel <= SCALAR
    rooted = _TEXT["of_objects"].sub("", wait.op) in ROOTED and (wait.whole_group or (wait.seems_whole and wait.site))
    return {
        "first": wait.first,
        "warm": done >= _WARM and done,
        "scalar": wait.op == "all_reduce" and is_scalar and (numel,),
        "bucket": wait.op == "all_reduce" and numel > SCALAR,
        "unit": wait.op in ("all_gather", "reduce_scatter") and numel > SCALAR and wait.op,
        "queued": ahead > 1 and ahead,
        "rooted": rooted and wait.op,
        "broadcast": wait.op == "broadcast" and not rooted,
        "whole": wait.whole_group and wait.members,
    }


def _of_ranks(symptoms: Symptoms) -> dict[str, object]:
    """Return the clues in the progress of the ranks; see `_of_call`."""
    longest = symptoms.longest
    late = symptoms.absent if "nccl_id_timeout" in symptoms.kinds else ()
    absent = (symptoms.silent or symptoms.behind) if longest.first else late
    at_other_calls, without_report = symptoms.at_other_calls, symptoms.without_report
    missing = longest.members - len(longest.ranks) if longest.members else len(symptoms.waits and symptoms.silent)
    is_partial = missing > 0 and not (symptoms.others or symptoms.by_position or at_other_calls or without_report)
    beside = [(longest, wait) for wait in symptoms.waits if wait.seq == longest.seq]
    alike = [pair for pair in beside if (pair[1].op, pair[1].group) == (longest.op, longest.group)]
    two_sizes = next((pair for pair in alike if pair[1].numel not in (None, longest.numel)), None)
    two_ops = next((pair for pair in beside if pair[1].op not in ("", longest.op)), None)
    low, *_, high = symptoms.by_position or (longest, longest)
    completed = (high.seq or 0) - 1
    is_fewer = low.enqueued is not None and low.enqueued < completed
    is_partly_known = at_other_calls or symptoms.outside or without_report or symptoms.possibly_late or symptoms.printed
    return {
        "seems_whole": longest.seems_whole and not (is_partly_known or symptoms.others) and len(longest.ranks),
        "late": absent,
        "two_sizes": longest.numel and two_sizes,
        "two_ops": (longest.seq or 0) >= _WARM and two_ops,
        "rank_0": symptoms.silent == (0,) and len(longest.ranks) > 1 and not longest.first,
        "partly": is_partial and missing,
        "not_called": symptoms.behind,
        "at_other_calls": at_other_calls,
        "without_report": () if at_other_calls else without_report,
        "side_thread": symptoms.broken,
        "threaded": symptoms.threaded,
        "unnamed_thread": (without_report or symptoms.silent) and symptoms.side_error,
        "positions_differ": symptoms.by_position and not is_fewer and (low, high),
        "positions_apart": symptoms.by_position and not is_fewer and max(0, completed - (low.seq or 0)),
        "fewer": symptoms.by_position and is_fewer and (low, high, completed),
    }


def _of_libraries(symptoms: Symptoms) -> dict[str, object]:
    """Return the clues in the reports of watchdogs and transports; see `_of_call`."""
    timed = [(wait, wait.waited_s or 0, wait.timeout_s or inf) for wait in symptoms.waits]
    over = next((wait for wait, waited_s, limit_s in timed if waited_s > _OVERRUN * max(limit_s, _SHORT_S)), None)
    short = next((wait for wait, waited_s, limit_s in timed if limit_s < _SHORT_S and wait is not over), None)
    reported, absent, is_id = symptoms.kinds & TRANSPORT, symptoms.absent, "nccl_id_timeout" in symptoms.kinds
    is_closed = reported == {"nccl_peer_closed"} and not symptoms.results
    is_remote = "ncclRemoteError" in symptoms.results
    waits_for_nothing = not (symptoms.waits or symptoms.failure or absent or symptoms.sizes or symptoms.differ)
    died = not (symptoms.waits or absent or symptoms.sizes or symptoms.differ) and symptoms.worker_died
    unnamed = waits_for_nothing or (symptoms.waits and not symptoms.longest.ranks)
    small, large = sorted(map(int, sizes.groups())) if (sizes := _TEXT["two_sizes"].search(symptoms.sizes)) else (0, 0)
    gap, peer_calls = (large - small) / max(large, 1), symptoms.peer_calls
    is_told = reported or symptoms.refused  # NCCL's result only repeats it.
    work = symptoms.work.fields if symptoms.work else {}
    return {
        "working": shortened(str(work.get("what", "")).strip(" *"), 60),
        "ended": work.get("ended"),
        "stuck": symptoms.stuck_s,
        "stood_still": symptoms.silence and symptoms.silence.of_ranks and symptoms.silence,
        "overrun": over,
        "short": short,
        "gloo": symptoms.library == "gloo",
        "transport": reported and not is_closed and not symptoms.refused,
        "refused": symptoms.refused,
        "system_error": "ncclSystemError" in symptoms.results and not is_told,
        "remote_error": "ncclRemoteError" if is_remote else is_closed and TABLE["texts"]["closed"],
        "inside_node": symptoms.inside_node,
        "sizes": symptoms.sizes,
        "scalar_met": _TEXT["scalar_met"].match(symptoms.sizes) and symptoms.sizes,
        "differ": symptoms.differ,
        "unlisted": symptoms.unlisted,
        "peer_lost": symptoms.lost and waits_for_nothing and shortened(symptoms.lost, CLAUSE),
        "absent": () if is_id or "missing_ranks" in symptoms.kinds else absent,
        "endless": absent and symptoms.limit_s > _NEVER_S and symptoms.limit_s,
        "uneven_load": "uneven_load" in symptoms.kinds,
        "warned": absent if "missing_ranks" in symptoms.kinds else (),
        "unanswered": symptoms.unanswered,
        "timed_out": unnamed and not symptoms.lost and shortened(symptoms.timed_out, CLAUSE),
        "worker_died": died,
        "oom_killer": "oom_killer" in symptoms.kinds and "kernel_oom" not in symptoms.kinds,
        "task_blocked": "task_blocked" in symptoms.kinds,
        "of_model": symptoms.of_model and peer_calls,
        "gathered": not symptoms.of_model and {wait.op for wait in peer_calls} <= {*TABLE["own_sizes"]} and peer_calls,
        "twice": symptoms.statements < 2 and small > 0 and large == 2 * small,
        "close_sizes": not symptoms.of_model
        and symptoms.statements < 2
        and small >= _LEAST_SIZE
        and gap < _CLOSE
        and gap,
        "one_statement": symptoms.statements == 1 and not symptoms.of_model and peer_calls[0],
    }
