"""Estimates the probability of each cause if a log confirms none, from the likelihood ratios in `suspicions.yaml`.

The odds of a cause are its share of known hangs times the ratio of each clue found in the log (naive Bayes).
"""

import re
from collections.abc import Collection, Sequence
from math import inf

from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.analysis.standing import SCALAR, TRANSPORT, Standing, Waiting
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Suspicion
from diagnostics.contract.formatting import UNNAMED, filled
from diagnostics.evidence.calls import ROOTED
from diagnostics.evidence.model import shortened
from diagnostics.evidence.readers import process

MOST = 3  # Maximum number of suspicions in a report.
LEAST = 0.12  # Minimum probability; below it a suspicion carries no information.
_WARM = 20  # Number of completed calls from which the start-up of a group is certainly over.
_LARGE = 0.15  # Share of memory that is unused, or outside PyTorch, from which it is suspected; see `memory.non_torch`.
_SCALAR_MET = re.compile(r"\D*(?:\d{3,} vs \d{1,2}|\d{1,2} vs \d{3,})\b")
"""Sizes in bytes of a metric, flag or barrier that met a gradient or an activation."""
_CLOSE = 0.1
"""Share of the larger size by which two sizes of one call differ at most; sizes of two calls rarely come so close."""
_TWO_SIZES = re.compile(r"(\d+) vs (\d+)\b")
_OWN_SIZES = {"all_gather", "all_gather_into_tensor", "all_gather_single", "gather", "all_to_all", "all_to_all_single"}
"""Operations whose tensors often have the number of samples that a rank has."""
_OF_OBJECTS = re.compile(r"_object(_list)?$")
_OVERRUN = 3  # Multiple of its timeout that a call waited, which shows that not even the watchdog thread could run.
_SHORT_S = 10  # Timeout that the set-up of a communicator or a slow step exceeds; the defaults are 600 s and more.
TABLE = table_beside(__file__)
_CAUSES, _CLUES, _DECIDE, _FIT = TABLE["causes"], TABLE["clues"], TABLE["decide"], TABLE["fit"]


def suspicions(standing: Standing, ruled_out: Collection[str] = ()) -> tuple[Suspicion, ...]:
    """Return the likeliest causes that are supported by a clue, at most `MOST`, the likeliest first."""
    signs, culprits, suspected = clues(standing), _culprits(standing), list[Suspicion]()
    no_dumps = standing.uses_gloo or process.KIND in standing.kinds  # A running job can be watched instead.
    likely = sorted(probabilities(signs, ruled_out).items(), key=lambda item: -item[1])
    for cause, probability in likely:
        speaks_for = tuple(text for name, text in signs.items() if _CLUES[name].get(cause, 1.0) > 1)
        against = tuple(text for name, text in signs.items() if _CLUES[name].get(cause, 1.0) < 1)
        if speaks_for and probability >= LEAST and len(suspected) < MOST:
            ranks, decide = culprits[_CAUSES[cause]["ranks"]], _CAUSES[cause]["decide"]
            ranks = tuple(rank for rank in ranks if rank > UNNAMED)
            of_ray = decide == "ends" and standing.worker_died
            of_nccl = (decide == "dumps" and no_dumps) or (decide in ("transport", "device") and standing.uses_gloo)
            decide = _DECIDE["ray" if of_ray else "watch" if of_nccl else decide]
            suspected.append(Suspicion(cause, round(probability, 2), ranks, speaks_for, against, decide))
    return tuple(suspected)


def probabilities(signs: Collection[str], ruled_out: Collection[str] = ()) -> dict[str, float]:
    """Return the probability of each cause given these clues; the rest to 1 are causes that the table does not list."""
    odds = {cause: entry["share"] for cause, entry in _CAUSES.items() if cause not in ruled_out}
    for name in signs:
        odds = {cause: value * _CLUES[name].get(cause, 1.0) for cause, value in odds.items()}
    fitted = {cause: value ** _FIT["exponent"] for cause, value in odds.items()}
    whole = sum(fitted.values()) + _FIT["other"]
    return {cause: value / whole for cause, value in fitted.items()}


def of_memory(records: Sequence[RanOut], steps: int = 0) -> tuple[Suspicion, ...]:
    """Return likely consumers of device memory if its figures do not show them; `steps` steps were printed."""
    record = next((record for record in records if record.device == "cuda"), None)
    if record is None:
        return ()
    reserved, outside, allocated = record.reserved_bytes or 0, record.outside_bytes or 0, record.allocated_bytes
    unused = (record.unused_bytes or 0) / reserved if reserved else 0.0
    used, asked = (record.total_bytes or 0) - (record.free_bytes or 0), record.requested_bytes or 0
    fits = asked <= (record.unused_bytes or 0) + (record.free_bytes or 0)
    is_outside = outside > _LARGE * (record.total_bytes or outside)
    signs = {"steps": steps, "alone": asked > used > 0, "unused": unused >= _LARGE and fits, "outside": is_outside}
    tensors = filled(TABLE["texts"]["tensors" if allocated else "no_fit"], {"allocated": allocated})
    figures = {"tensors": tensors, "steps": steps, "unused": unused, "outside": outside, "asked": asked, "used": used}
    rows = {
        cause: row | next((more for sign, more in row["where"].items() if signs[sign]), {})
        for cause, row in TABLE["memory"].items()
    }
    whole = sum(row["share"] for row in rows.values())
    likely = sorted(((row["share"] / whole, cause, row["says"]) for cause, row in rows.items() if row["says"]))[::-1]
    return tuple(
        Suspicion(cause, round(share, 2), (), (filled(text, figures),), (), _DECIDE["snapshot"])
        for share, cause, text in likely[:MOST]
    )


def clues(standing: Standing) -> dict[str, str]:
    """Return the clues found in a log: name in `suspicions.yaml` -> description, in the table's order."""
    signs = _of_call(standing.longest) | _of_ranks(standing) | _of_libraries(standing)
    return {name: filled(text, {"it": signs[name]}) for name, text in TABLE["says"].items() if signs.get(name)}


def _culprits(standing: Standing) -> dict[str, tuple[int, ...]]:
    """Return the ranks that a cause would blame, by the names used in the table."""
    behind = standing.behind or standing.absent or standing.minority or standing.without_report or standing.mismatched
    behind = standing.by_position[0].ranks if standing.by_position and not behind else behind
    silent = (
        standing.unanswered
        or standing.unlisted
        or (standing.silent if len(standing.silent) <= len(standing.longest.ranks) else ())
    )
    return {"nobody": (), "behind": behind, "silent": silent, "stalled": standing.broken or behind or silent}


def _of_call(wait: Waiting) -> dict[str, object]:
    """Return each clue in the call that most ranks wait in: false, or the values for its text."""
    seq, numel = wait.seq or 0, wait.numel or 0
    done = wait.completed if wait.completed is not None else seq - 1
    ahead = (wait.enqueued or 0) - seq
    is_scalar = wait.numel is not None and numel <= SCALAR
    rooted = _OF_OBJECTS.sub("", wait.op) in ROOTED and (wait.whole_group or (wait.seems_whole and wait.site))
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


def _of_ranks(standing: Standing) -> dict[str, object]:
    """Return the clues in the progress of the ranks; see `_of_call`."""
    longest = standing.longest
    late = standing.absent if "nccl_id_timeout" in standing.kinds else ()
    absent = (standing.silent or standing.behind) if longest.first else late
    at_other_calls, without_report = standing.at_other_calls, standing.without_report
    missing = longest.members - len(longest.ranks) if longest.members else len(standing.waits and standing.silent)
    is_partial = missing > 0 and not (standing.others or standing.by_position or at_other_calls or without_report)
    beside = [(longest, wait) for wait in standing.waits if wait.seq == longest.seq]
    alike = [pair for pair in beside if (pair[1].op, pair[1].group) == (longest.op, longest.group)]
    two_sizes = next((pair for pair in alike if pair[1].numel not in (None, longest.numel)), None)
    two_ops = next((pair for pair in beside if pair[1].op not in ("", longest.op)), None)
    low, *_, high = standing.by_position or (longest, longest)
    completed = (high.seq or 0) - 1
    is_fewer = low.enqueued is not None and low.enqueued < completed
    is_partly_known = at_other_calls or standing.outside or without_report or standing.possibly_late
    return {
        "seems_whole": longest.seems_whole and not (is_partly_known or standing.others) and len(longest.ranks),
        "late": absent,
        "two_sizes": longest.numel and two_sizes,
        "two_ops": (longest.seq or 0) >= _WARM and two_ops,
        "rank_0": standing.silent == (0,) and len(longest.ranks) > 1 and not longest.first,
        "partly": is_partial and missing,
        "not_called": standing.behind,
        "at_other_calls": at_other_calls,
        "without_report": () if at_other_calls else without_report,
        "side_thread": standing.broken,
        "threaded": standing.threaded,
        "unnamed_thread": (without_report or standing.silent) and standing.side_error,
        "positions_differ": standing.by_position and not is_fewer and (low, high),
        "positions_apart": standing.by_position and not is_fewer and max(0, completed - (low.seq or 0)),
        "fewer": standing.by_position and is_fewer and (low, high, completed),
    }


def _of_libraries(standing: Standing) -> dict[str, object]:
    """Return the clues in the reports of watchdogs and transports; see `_of_call`."""
    timed = [(wait, wait.waited_s or 0, wait.timeout_s or inf) for wait in standing.waits]
    over = next((wait for wait, waited_s, limit_s in timed if waited_s > _OVERRUN * max(limit_s, _SHORT_S)), None)
    short = next((wait for wait, waited_s, limit_s in timed if limit_s < _SHORT_S and wait is not over), None)
    reported, absent, is_id = standing.kinds & TRANSPORT, standing.absent, "nccl_id_timeout" in standing.kinds
    is_closed = reported == {"nccl_peer_closed"} and not standing.results
    is_remote = "ncclRemoteError" in standing.results
    waits_for_nothing = not (standing.waits or standing.failure or absent or standing.sizes or standing.differ)
    unnamed = waits_for_nothing or (standing.waits and not standing.longest.ranks)
    small, large = sorted(map(int, sizes.groups())) if (sizes := _TWO_SIZES.search(standing.sizes)) else (0, 0)
    gap, peer_calls = (large - small) / max(large, 1), standing.peer_calls
    is_told = reported or standing.refused  # NCCL's result only repeats it.
    work = standing.work.fields if standing.work else {}
    return {
        "working": shortened(str(work.get("what", "")).strip(" *"), 60),
        "ended": work.get("ended"),
        "stuck": standing.stuck_s,
        "overrun": over,
        "short": short,
        "transport": reported and not is_closed and not standing.refused,
        "refused": standing.refused,
        "system_error": "ncclSystemError" in standing.results and not is_told,
        "remote_error": "ncclRemoteError" if is_remote else is_closed and TABLE["texts"]["closed"],
        "inside_node": standing.inside_node,
        "sizes": standing.sizes,
        "scalar_met": _SCALAR_MET.match(standing.sizes) and standing.sizes,
        "differ": standing.differ,
        "unlisted": standing.unlisted,
        "peer_lost": standing.lost and waits_for_nothing and shortened(standing.lost, 80),
        "absent": () if is_id or "missing_ranks" in standing.kinds else absent,
        "warned": absent if "missing_ranks" in standing.kinds else (),
        "unanswered": standing.unanswered,
        "timed_out": unnamed and not standing.lost and shortened(standing.timed_out, 80),
        "worker_died": standing.worker_died and waits_for_nothing and standing.worker_died,
        "of_model": standing.of_model and peer_calls,
        "gathered": not standing.of_model and {wait.op for wait in peer_calls} <= _OWN_SIZES and peer_calls,
        "twice": small > 0 and large == 2 * small,
        "close_sizes": not standing.of_model and small > 99 and gap < _CLOSE and gap,
    }
