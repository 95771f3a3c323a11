"""How likely each cause is where a log confirms none: what a log shows, as likelihood ratios, in one table.

The odds of a cause are its share among known hangs times the ratio of each clue that the log shows (naive Bayes). The
shares and ratios are judgements; `benchmarks/log_corpus.py` prints how often a probability turns out right.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.analysis.standing import SCALAR, TRANSPORT, Standing, Waiting
from diagnostics.contract.findings import Suspicion
from diagnostics.contract.formatting import bytes_text, counted, ranks_spoken, verb

MOST = 3
"""Suspicions that are told."""
LEAST = 0.12
"""Probability below which a suspicion says no more than that the cause exists."""
_OTHER = 0.08
"""Share of causes that are not in the table."""
_WARM = 20
"""Calls that completed in a group whose start-up is certainly over."""
_LOST = 0.15
"""Share of a device's memory, reserved and unused or held outside PyTorch, that is more than usual."""
_OVERRUN = 3
"""Times its timeout that a call waited where not even the watchdog's thread could run."""

_DUMPS = (
    "TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/shared/flight_rank_ COMMAND, "
    "then dtk diagnose /shared: which call each rank made last, and from which line"
)
_STACKS = "py-spy dump --pid PID on every rank while it hangs, or dtk watch -- COMMAND: the line where each rank stands"
_TRANSPORT = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET COMMAND: interface, transport, and who is missing"
_DEVICE = "dmesg | grep -iE 'xid|nvlink|mlx' on the node of each waiting rank: a fault of the device or of a link"
_ENDS = "torchrun --log-dir=logs --redirects=3 ...: the stderr and the exit code of every rank, also of the silent ones"


def _nobody(standing: Standing) -> tuple[int, ...]:
    return ()


def _behind(standing: Standing) -> tuple[int, ...]:
    return standing.behind or (standing.apart[0].ranks if standing.apart else ())


def _silent(standing: Standing) -> tuple[int, ...]:
    return standing.silent if len(standing.silent) <= len(standing.longest.ranks) else ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A cause that comes into question."""

    share: float
    """Among hangs whose cause is known."""
    decide: str
    ranks: Callable[[Standing], tuple[int, ...]] = _nobody


_CANDIDATES: Mapping[str, _Candidate] = {
    "hang.conditional_collective": _Candidate(0.18, _DUMPS, _behind),
    "hang.host_stall": _Candidate(
        0.14, _STACKS, lambda standing: standing.broken or _behind(standing) or _silent(standing)
    ),
    "hang.uneven_iterations": _Candidate(0.12, _DUMPS, _behind),
    "hang.collective_mismatch": _Candidate(0.08, _DUMPS, _behind),
    "hang.signature_mismatch": _Candidate(0.07, _DUMPS, _behind),
    "hang.unused_parameters": _Candidate(0.06, "TORCH_DISTRIBUTED_DEBUG=INFO COMMAND: the parameters without gradient"),
    "hang.rank_raised": _Candidate(0.08, _ENDS, _silent),
    "hang.rank_killed": _Candidate(0.06, _ENDS, _silent),
    "hang.network": _Candidate(0.07, _TRANSPORT),
    "hang.device_stall": _Candidate(0.06, _DEVICE, _behind),
    "hang.startup": _Candidate(0.04, _TRANSPORT),
    "env.wrong_interface": _Candidate(0.02, _TRANSPORT),
}
_LEFT_OUT = ("hang.conditional_collective", "hang.uneven_iterations", "hang.host_stall")
_PARTED = ("hang.collective_mismatch", "hang.signature_mismatch")
_GONE = ("hang.rank_raised", "hang.rank_killed")
_FABRIC = ("hang.network", "hang.device_stall")


def _ratios(*parts: tuple[float, Iterable[str]]) -> dict[str, float]:
    return {cause: ratio for ratio, causes in parts for cause in causes}


@dataclass(frozen=True, slots=True)
class _Clue:
    """Something that a log shows; above 1 the cause shows it more often than others, below 1 less often."""

    ratios: Mapping[str, float]
    seen: Callable[[Standing], str]
    """What it is in words; empty where the log does not show it."""


def _first(standing: Standing) -> str:
    return "no call of this group ever completed" if standing.longest.first else ""


def _came_late(standing: Standing) -> str:
    absent = (standing.silent or standing.behind) if standing.longest.first else ()
    return f"{ranks_spoken(absent)} {verb(absent, 'was', 'were')} not there when the others began" if absent else ""


def _warm(standing: Standing) -> str:
    wait = standing.longest
    done = wait.completed if wait.completed is not None else (wait.seq or 0) - 1
    return f"the group completed {done:,} calls before it, so its connections had worked" if done >= _WARM else ""


def _large(wait: Waiting, *ops: str) -> bool:
    return wait.op in ops and (wait.numel or 0) > SCALAR


def _scalar(standing: Standing) -> str:
    wait = standing.longest
    if wait.op != "all_reduce" or wait.numel is None or wait.numel > SCALAR:
        return ""
    return f"an all_reduce of {counted(wait.numel, 'element')} is a metric, a flag or a barrier, often conditional"


def _bucket(standing: Standing) -> str:
    large = _large(standing.longest, "all_reduce")
    return "an all_reduce of this size is that of gradients, once in each backward pass" if large else ""


def _unit(standing: Standing) -> str:
    wait = standing.longest
    large = _large(wait, "all_gather", "reduce_scatter")
    return f"{wait.op} of this size is that of a sharded unit (FSDP, ZeRO)" if large else ""


def _queued(standing: Standing) -> str:
    behind = (standing.longest.enqueued or 0) - (standing.longest.seq or 0)
    return f"the program ran {counted(behind, 'call')} ahead: it does not wait for the result" if behind > 1 else ""


def _broadcast(standing: Standing) -> str:
    text = "a broadcast waits for its root, which may do work that the others skip"
    return text if standing.longest.op == "broadcast" else ""


def _whole(standing: Standing) -> str:
    wait = standing.longest
    return f"all {wait.members} ranks of the group wait in this call" if wait.whole_group else ""


def _partly(standing: Standing) -> str:
    missing = (standing.longest.members or 0) - len(standing.longest.ranks)
    told = standing.others or standing.apart
    return f"{counted(missing, 'rank')} of the group left no line about it" if missing > 0 and not told else ""


def _did_not_come(standing: Standing) -> str:
    who = standing.behind
    its = verb(who, "its", "their")
    return f"{ranks_spoken(who)} completed all {its} calls and did not make this one" if who else ""


def _apart(standing: Standing) -> str:
    if len(standing.apart) < 2 or _fewer(standing):
        return ""
    low, high = standing.apart[0], standing.apart[-1]
    there = f"{ranks_spoken(high.ranks)} at #{high.seq:,}"
    return f"{ranks_spoken(low.ranks)} {verb(low.ranks, 'waits', 'wait')} at #{low.seq:,}, {there}"


def _fewer(standing: Standing) -> str:
    if len(standing.apart) < 2:
        return ""
    low, high = standing.apart[0], standing.apart[-1]
    made, done = low.enqueued, (high.seq or 0) - 1
    if made is None or made >= done:
        return ""
    return f"{ranks_spoken(low.ranks)} made {made:,} calls where {ranks_spoken(high.ranks)} completed {done:,}"


def _stuck(standing: Standing) -> str:
    return f"the watchdog itself was stuck for {standing.stuck_s:.0f} s in a call of CUDA" if standing.stuck_s else ""


def _overrun(standing: Standing) -> str:
    over = [wait for wait in standing.waits if (wait.waited_s or 0) > _OVERRUN * (wait.timeout_s or float("inf"))]
    return f"it waited {over[0].waited_s:,.0f} s with a timeout of {over[0].timeout_s:,.0f} s" if over else ""


def _transport(standing: Standing) -> str:
    return "the transport reported errors" if standing.kinds & TRANSPORT and not standing.refused else ""


def _refused(standing: Standing) -> str:
    return "a peer refused the connection: it listens at another address, or is gone" if standing.refused else ""


def _side_thread(standing: Standing) -> str:
    who = standing.broken
    its = verb(who, "its", "their")
    return (
        f"a side thread of {ranks_spoken(who)} had raised an exception, and {its} main thread left no line"
        if who
        else ""
    )


_CLUES = (
    _Clue(
        _ratios((20, ["hang.startup"]), (6, ["env.wrong_interface"]), (1.5, ["hang.network"]), (0.4, _GONE),
                (0.3, [*_PARTED, "hang.conditional_collective"]), (0.05, ["hang.uneven_iterations"]),
                (0.02, ["hang.unused_parameters"])),
        _first,
    ),
    _Clue(_ratios((5, ["hang.host_stall"]), (3, _GONE), (0.2, ["hang.startup", "env.wrong_interface"])), _came_late),
    _Clue(_ratios((0.01, ["hang.startup", "env.wrong_interface"])), _warm),
    _Clue(_ratios((20, ["hang.host_stall"]), (0.5, [*_PARTED, *_FABRIC, "hang.unused_parameters"])), _side_thread),
    _Clue(
        _ratios((2.5, ["hang.conditional_collective"]), (1.3, ["hang.uneven_iterations", "hang.host_stall"]),
                (0.1, ["hang.unused_parameters"]), (0.5, ["hang.signature_mismatch"])),
        _scalar,
    ),
    _Clue(
        _ratios((2.5, ["hang.unused_parameters"]), (1.5, ["hang.uneven_iterations"]),
                (0.5, ["hang.conditional_collective"])),
        _bucket,
    ),
    _Clue(_ratios((1.6, ["hang.uneven_iterations"]), (0.5, ["hang.unused_parameters"]), (1.3, _FABRIC)), _unit),
    _Clue(
        _ratios((1.5, ["hang.uneven_iterations", *_FABRIC]), (0.6, ["hang.conditional_collective"])),
        _queued,
    ),
    _Clue(_ratios((2, ["hang.host_stall"]), (0.2, ["hang.unused_parameters"])), _broadcast),
    _Clue(
        _ratios((8, _FABRIC), (4, ["hang.startup"]), (0.05, [*_LEFT_OUT, *_GONE]), (0.3, ["hang.unused_parameters"]),
                (0.3, ["hang.collective_mismatch"])),
        _whole,
    ),
    _Clue(_ratios((1.5, [*_GONE, "hang.host_stall"])), _partly),
    _Clue(
        _ratios((4, _LEFT_OUT), (0.3, _GONE), (0.1, [*_PARTED, *_FABRIC, "hang.startup", "hang.unused_parameters"])),
        _did_not_come,
    ),
    _Clue(
        _ratios((5, [*_PARTED, "hang.device_stall"]), (1.5, ["hang.network"]), (0.2, [*_LEFT_OUT, *_GONE]),
                (0.5, ["hang.unused_parameters"])),
        _apart,
    ),
    _Clue(
        _ratios((5, ["hang.conditional_collective", "hang.uneven_iterations", "hang.collective_mismatch"]),
                (0.1, [*_GONE, *_FABRIC, "hang.host_stall", "hang.unused_parameters"])),
        _fewer,
    ),
    _Clue(_ratios((5, ["hang.device_stall"]), (2, ["hang.network", "hang.host_stall"])), _stuck),
    _Clue(_ratios((8, ["hang.device_stall"]), (3, ["hang.host_stall"])), _overrun),
    _Clue(_ratios((10, ["hang.network"]), (3, _GONE), (0.3, [*_LEFT_OUT, *_PARTED])), _transport),
    _Clue(
        _ratios((25, ["env.wrong_interface"]), (5, ["hang.rank_killed"]), (3, ["hang.rank_raised", "hang.startup"]),
                (2, ["hang.network"]), (0.05, [*_LEFT_OUT, *_PARTED, "hang.unused_parameters", "hang.device_stall"])),
        _refused,
    ),
)  # fmt: skip


_SNAPSHOT = (
    "torch.cuda.memory._record_memory_history(), and in `except torch.OutOfMemoryError:` "
    "torch.cuda.memory._dump_snapshot('rank_N.pickle'), then dtk diagnose: what holds the memory, and who allocated it"
)


def of_memory(records: Sequence[RanOut]) -> tuple[Suspicion, ...]:
    """Return what may have taken a device's memory, where its figures do not tell."""
    one = next((record for record in records if record.device == "cuda"), None)
    if one is None:
        return ()
    reserved, outside = one.reserved_bytes or 0, one.outside_bytes or 0
    unused = (one.unused_bytes or 0) / reserved if reserved else 0.0
    lost = f"{unused:.0%} of what PyTorch reserved is in no tensor" if unused >= _LOST else ""
    held = f"{bytes_text(outside)} are held outside PyTorch" if outside > _LOST * (one.total_bytes or outside) else ""
    tensors = f"{bytes_text(one.allocated_bytes)} are in tensors" if one.allocated_bytes else "the request did not fit"
    odds = {
        "memory.model_states": (0.42, tensors),
        "memory.activations": (0.36, tensors),
        "memory.fragmentation": (0.3 if lost else 0.04, lost),
        "memory.non_torch": (0.3 if held else 0.04, held),
    }
    total = sum(share for share, _ in odds.values())
    likely = sorted(((share / total, cause, text) for cause, (share, text) in odds.items() if text), reverse=True)
    return tuple(Suspicion(cause, round(share, 2), (), (text,), (), _SNAPSHOT) for share, cause, text in likely[:MOST])


def suspicions(standing: Standing, ruled_out: Collection[str] = ()) -> tuple[Suspicion, ...]:
    """Return the likeliest causes for which a clue speaks, at most `MOST`, the likeliest first."""
    shown = [(clue, text) for clue in _CLUES if (text := clue.seen(standing))]
    odds = {cause: candidate.share for cause, candidate in _CANDIDATES.items() if cause not in ruled_out}
    for clue, _ in shown:
        odds = {cause: value * clue.ratios.get(cause, 1.0) for cause, value in odds.items()}
    total = sum(odds.values()) + _OTHER
    likeliest = sorted(odds, key=lambda cause: -odds[cause])[:MOST]
    suspected = (
        Suspicion(
            cause,
            round(odds[cause] / total, 2),
            _CANDIDATES[cause].ranks(standing),
            tuple(text for clue, text in shown if clue.ratios.get(cause, 1.0) > 1),
            tuple(text for clue, text in shown if clue.ratios.get(cause, 1.0) < 1),
            _CANDIDATES[cause].decide,
        )
        for cause in likeliest
        if odds[cause] / total >= LEAST
    )
    return tuple(one for one in suspected if one.speaks_for)
