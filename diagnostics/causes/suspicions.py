"""How likely each cause is where a log confirms none: what a log shows, as likelihood ratios (`suspicions.yaml`).

The odds of a cause are its share among known hangs times the ratio of each clue that the log shows (naive Bayes).
"""

from collections.abc import Collection, Iterator, Sequence
from math import inf

from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.analysis.standing import SCALAR, TRANSPORT, Standing, Waiting
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Suspicion
from diagnostics.contract.formatting import bytes_text, counted, ranks_spoken, verb
from diagnostics.evidence.model import shortened

MOST = 3
"""Suspicions that a report names."""
LEAST = 0.12
"""Probability below which a suspicion says no more than that the cause exists."""
_OTHER = 0.08
"""Share of causes that are not in the table."""
_WARM = 20
"""Calls that completed in a group whose start-up is certainly over."""
_LOST = 0.15
"""Share of a device's memory, reserved and unused or held outside PyTorch, that is more than usual."""
_ROOTED = frozenset({"broadcast", "reduce", "scatter", "gather"})  # All ranks of which name one rank.
_OVERRUN = 3
"""Times its timeout that a call waited where not even the watchdog's thread could run."""
TABLE = table_beside(__file__)
_CAUSES, _CLUES, _DECIDE = TABLE["causes"], TABLE["clues"], TABLE["decide"]


def suspicions(standing: Standing, ruled_out: Collection[str] = ()) -> tuple[Suspicion, ...]:
    """Return the likeliest causes for which a clue speaks, at most `MOST`, the likeliest first."""
    shown = clues(standing)
    odds = {cause: entry["share"] for cause, entry in _CAUSES.items() if cause not in ruled_out}
    for name in shown:
        odds = {cause: value * _CLUES[name].get(cause, 1.0) for cause, value in odds.items()}
    total, culprits, suspected = sum(odds.values()) + _OTHER, _culprits(standing), []
    for cause in sorted(odds, key=lambda cause: -odds[cause])[:MOST]:
        speaks_for = tuple(text for name, text in shown.items() if _CLUES[name].get(cause, 1.0) > 1)
        against = tuple(text for name, text in shown.items() if _CLUES[name].get(cause, 1.0) < 1)
        if speaks_for and odds[cause] / total >= LEAST:
            entry, probability = _CAUSES[cause], round(odds[cause] / total, 2)
            ranks, decide = culprits[entry["ranks"]], _DECIDE[entry["decide"]]
            suspected.append(Suspicion(cause, probability, ranks, speaks_for, against, decide))
    return tuple(suspected)


def of_memory(records: Sequence[RanOut], steps: int = 0) -> tuple[Suspicion, ...]:
    """Return what may have taken a device's memory, where its figures do not tell and `steps` steps were printed."""
    record = next((record for record in records if record.device == "cuda"), None)
    if record is None:
        return ()
    reserved, outside, total = record.reserved_bytes or 0, record.outside_bytes or 0, record.total_bytes
    unused = (record.unused_bytes or 0) / reserved if reserved else 0.0
    lost = f"{unused:.0%} of what PyTorch reserved is in no tensor" if unused >= _LOST else ""
    held = f"{bytes_text(outside)} are held outside PyTorch" if outside > _LOST * (total or outside) else ""
    allocated = record.allocated_bytes
    tensors = f"{bytes_text(allocated)} are in tensors" if allocated else "the request did not fit"
    before = f"{counted(steps, 'step')} had run before it"
    in_place = f"{tensors}; {before}, so parameters, gradients and optimizer states were in place" if steps else tensors
    odds = {
        "memory.model_states": (0.08 if steps else 0.36, tensors),
        "memory.activations": (0.6 if steps else 0.42, in_place),
        "memory.leak": (0.15 if steps else 0.02, f"{before}: less may have been held then" if steps else ""),
        "memory.fragmentation": (0.3 if lost else 0.04, lost),
        "memory.non_torch": (0.3 if held else 0.04, held),
    }
    whole = sum(share for share, _ in odds.values())
    likely = sorted(((share / whole, cause, text) for cause, (share, text) in odds.items() if text), reverse=True)
    return tuple(
        Suspicion(cause, round(share, 2), (), (text,), (), _DECIDE["snapshot"]) for share, cause, text in likely[:MOST]
    )


def clues(standing: Standing) -> dict[str, str]:
    """Return the clues that a log shows: name in `suspicions.yaml` -> what it shows in words, in the table's order."""
    rows = (*_of_call(standing.longest), *_of_ranks(standing), *_of_libraries(standing))
    texts = {name: text for name, is_shown, text in rows if is_shown}
    return {name: texts[name] for name in _CLUES if name in texts}


def _culprits(standing: Standing) -> dict[str, tuple[int, ...]]:
    """Return the ranks that a cause would blame, by the names that the table uses."""
    behind = (
        standing.behind
        or standing.absent
        or standing.elsewhere
        or standing.wordless
        or (standing.apart[0].ranks if standing.apart else ())
    )
    silent = standing.silent if len(standing.silent) <= len(standing.longest.ranks) else ()
    return {"nobody": (), "behind": behind, "silent": silent, "stalled": standing.broken or behind or silent}


def _of_call(wait: Waiting) -> Iterator[tuple[str, object, str]]:
    """Yield name, whether it is shown, and text of each clue in the call that most ranks wait in."""
    seq, numel = wait.seq or 0, wait.numel or 0
    done = wait.completed if wait.completed is not None else seq - 1
    ahead = (wait.enqueued or 0) - seq
    is_scalar = wait.op == "all_reduce" and wait.numel is not None and numel <= SCALAR
    is_unit = wait.op in ("all_gather", "reduce_scatter") and numel > SCALAR
    metric = f"an all_reduce of {counted(numel, 'element')} is a metric, a flag or a barrier, often conditional"
    bucket = "an all_reduce of this size is that of gradients, once in each backward pass"
    yield "first", wait.first, "no call of this group ever completed"
    yield "warm", done >= _WARM, f"the group completed {done:,} calls before it, so its connections had worked"
    yield "scalar", is_scalar, metric
    yield "bucket", wait.op == "all_reduce" and numel > SCALAR, bucket
    yield "unit", is_unit, f"{wait.op} has the size of a sharded unit (FSDP, ZeRO)"
    yield "queued", ahead > 1, f"the program ran {counted(ahead, 'call')} ahead: it does not wait for the result"
    rooted = wait.op in _ROOTED and wait.whole_group
    yield "rooted", rooted, f"all ranks are in it, and a {wait.op} that they do not give the same root never ends"
    root = "a broadcast waits for its root, which may do work that the others skip"
    yield "broadcast", wait.op == "broadcast" and not rooted, root
    yield "whole", wait.whole_group, f"all {wait.members} ranks of the group wait in this call"


def _of_ranks(standing: Standing) -> Iterator[tuple[str, object, str]]:
    """Yield the clues in how far the ranks have come; see `_of_call`."""
    longest, behind, broken = standing.longest, standing.behind, standing.broken
    late = standing.absent if "nccl_id_timeout" in standing.kinds else ()
    absent = (standing.silent or behind) if longest.first else late
    missing = (longest.members or 0) - len(longest.ranks)
    is_partial = missing > 0 and not (standing.others or standing.apart or standing.elsewhere or standing.wordless)
    did_not_come = (
        f"{ranks_spoken(behind)} completed all {verb(behind, 'its', 'their')} calls and did not make this one"
    )
    thread = f"a side thread of {ranks_spoken(broken)} had raised an exception"
    yield "came_late", absent, f"{ranks_spoken(absent)} {verb(absent, 'was', 'were')} not there when the others began"
    yield "partly", is_partial, f"{counted(missing, 'rank')} of the group logged nothing about it"
    yield "did_not_come", behind, did_not_come
    elsewhere, wordless = standing.elsewhere, standing.wordless
    yield "elsewhere", elsewhere, f"{ranks_spoken(elsewhere)} gave up at another line than the others"
    no_word = f"{ranks_spoken(wordless)} gave up on no call: {verb(wordless, 'it', 'they')} waited in none"
    yield "wordless", wordless and not elsewhere, no_word
    yield "side_thread", broken, f"{thread}, and {verb(broken, 'its', 'their')} main thread left no line"
    if len(standing.apart) > 1:
        low, high = standing.apart[0], standing.apart[-1]
        completed = (high.seq or 0) - 1
        low_ranks, high_ranks = ranks_spoken(low.ranks), ranks_spoken(high.ranks)
        waits = f"{low_ranks} {verb(low.ranks, 'waits', 'wait')} at #{low.seq:,}, {high_ranks} at #{high.seq:,}"
        is_fewer = low.enqueued is not None and low.enqueued < completed
        yield "apart", not is_fewer, waits
        yield (
            "fewer",
            is_fewer,
            f"{low_ranks} made {low.enqueued or 0:,} calls where {high_ranks} completed {completed:,}",
        )


def _of_libraries(standing: Standing) -> Iterator[tuple[str, object, str]]:
    """Yield the clues in what watchdogs and transports report; see `_of_call`."""
    over = next((wait for wait in standing.waits if (wait.waited_s or 0) > _OVERRUN * (wait.timeout_s or inf)), None)
    stuck = f"the watchdog itself was stuck for {standing.stuck_s:.0f} s in a call of CUDA"
    waited = f"it waited {over.waited_s:,.0f} s with a timeout of {over.timeout_s:,.0f} s" if over else ""
    refused = "a peer refused the connection: it listens at another address, or is gone"
    yield "stuck", standing.stuck_s, stuck
    yield "overrun", over, waited
    reported = standing.kinds & TRANSPORT
    is_closed = reported == {"nccl_peer_closed"} and not standing.results
    yield "transport", reported and not is_closed and not standing.refused, "the transport reported errors"
    yield "refused", standing.refused, refused
    system = "ncclSystemError: a call of the operating system failed, mostly of a socket"
    said = "a connection was closed" if is_closed else "ncclRemoteError"
    remote = f"{said}: a peer's process ended, or the network to it failed"
    loopback = "NCCL tried to reach a peer at the loopback address, which leads nowhere else"
    is_lost = standing.lost and not (standing.waits or standing.failure or standing.absent)
    lost = f"a peer's process ended, or its connection broke: {shortened(standing.lost, 80)}"
    yield "system_error", "ncclSystemError" in standing.results, system
    yield "remote_error", is_closed or "ncclRemoteError" in standing.results, remote
    yield "loopback", standing.loopback, loopback
    yield "lost", is_lost, lost
    not_there = f"{ranks_spoken(standing.absent)} did not make a call in time that others wait in"
    yield "absent", standing.absent and "nccl_id_timeout" not in standing.kinds, not_there
