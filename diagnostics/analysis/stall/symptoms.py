"""The state of a job that stands still, from log lines or from observations from outside alone: which ranks wait in
which call, since when, and how far the others are.

Log lines hold no histories, so this module does not decide which rank deviates: `divergence` does, to which `watchdog`
hands the calls that such lines show. The waits found here come from positions and counters, and only serve suspicions.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.environment.addresses import network_inside
from diagnostics.analysis.histories.watchdog_lines import (
    COUNTED,
    UNNAMED,
    GroupLog,
    enqueued_behind,
    is_after,
    members_of,
    read_all,
    stamp_s,
)
from diagnostics.analysis.observations import observations
from diagnostics.analysis.stall.from_observations import places
from diagnostics.analysis.stall.job_state import STALL_S
from diagnostics.analysis.stall.stack_evidence import collective_of
from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import UNNAMED as NOBODY, Phrase, file_name
from diagnostics.evidence.calls import ROOTED, operation
from diagnostics.evidence.endings import Ending, of_error, of_srun
from diagnostics.evidence.model import Evidence, Frame, LogFact, Stacks, shortened
from diagnostics.evidence.readers import ras
from diagnostics.evidence.stacks.activity import doing
from diagnostics.evidence.stacks.dumps import main_thread, target

TRANSPORT = frozenset({"nccl_ib_error", "nccl_ib_async", "nccl_peer_closed", "nccl_connect", "link_down"})
_TABLE = table_beside(__file__)
_KINDS = {name: frozenset(kinds) for name, kinds in _TABLE["kinds"].items()}
_OPENS = TRANSPORT | _KINDS["opens"]
"""Kinds of lines that say that something waits, or why it may wait."""
_BEST_WORDS = ("nccl_last_error", "nccl_result", "dist_backend_error")
"""Kinds of lines in which NCCL gives up, the most specific first; the last one only gives a place in torch's source."""
_FAILED = frozenset(_BEST_WORDS)
_OF_PEERS = _FAILED | _KINDS["noticed"] | _KINDS["closed"] | {"nccl_peer_closed", "store_closed"}
"""Kinds of lines that a rank also writes when its peers were stopped."""
_SHOWN = _OPENS - {"nccl_connect"} | {"watchdog_abort", "flight_dump_signal"}
"""Kinds of lines whose whole content is in `Symptoms`."""
_PHASES = ("START", "COMPLETE")  # Of NCCL's lines about the set-up of a communicator.
_SENT = {"SIGTERM", "SIGKILL"}  # Signals by which launchers and the kernel end a rank.
_NEAR = 0.99  # Share of the higher of two positions from which the lower one is not by chance that of another group.
_CPP_FILE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\] ")
_OF_MODEL = re.compile(r"torch/(?:distributed/(?:fsdp|_composable|optim)|nn/parallel)/|deepspeed/runtime/zero/")
"""Files whose collectives take the sizes of the model's parameters, which are those of all ranks."""


class Waiting(Struct, frozen=True):
    """Ranks that wait in one call."""

    ranks: tuple[int, ...]
    """Empty if the lines name none."""
    op: str
    """Name of the operation; empty = unknown."""
    seq: int | None = None
    numel: int | None = None
    """Input elements per rank."""
    group: str = ""
    """Description or name of the group; empty = not named."""
    members: int | None = None
    """Number of ranks in the group; None = unknown."""
    completed: int | None = None
    """Last position completed by the lowest rank with a counter; below 1 if no call of the group completed there."""
    enqueued: int | None = None
    """Last position that any of these ranks enqueued; None = unknown."""
    waited_s: float | None = None
    timeout_s: float | None = None
    since: str = ""
    """Time at which the wait began by the log's own clock, such as `01:57:08`."""
    site: str = ""
    """The user's line, such as `train.py:12`, from the ranks' stacks or tracebacks; empty = unknown."""
    behind: tuple[int, ...] = ()
    """Those of the ranks that were already waiting in another group when they enqueued this call; it waits for them."""
    processes: tuple[int, ...] = ()
    """Process ids of ranks that nothing names."""

    @property
    def first(self) -> bool:
        """Whether no call of the group completed before this one."""
        return self.completed <= 0 if self.completed is not None else self.seq in (0, 1)

    @property
    def seems_whole(self) -> bool:
        """Whether all ranks from 0 to the highest of these wait in the call, in a group of unknown size."""
        of_all = self.op.removeprefix("i") not in ("send", "recv") and not self.behind
        return of_all and self.members is None and bool(self.waited_s) and 1 < len(self.ranks) == self.ranks[-1] + 1

    @property
    def counted(self) -> bool:
        """Whether the position is one that all ranks of the group share: messages of two ranks are counted apart."""
        return not self.op or self.op in COUNTED

    @property
    def whole_group(self) -> bool:
        """Whether every rank of the group is known to wait in the call, and none of them is held up elsewhere."""
        return self.members is not None and len(self.ranks) == self.members > 1 and not self.behind


class Progress(Struct, frozen=True):
    """Ranks that do not wait in a group, and their last positions in it."""

    ranks: tuple[int, ...]
    group: str
    completed: int
    enqueued: int


class Symptoms(Struct, frozen=True):
    """A job that stands still, as its log or observations of its processes show it."""

    waits: tuple[Waiting, ...]
    """The call in which the most ranks wait comes first."""
    others: tuple[Progress, ...]
    silent: tuple[int, ...]
    """Ranks of the job without any line in the log."""
    aborted: tuple[int, ...]
    """Ranks that ended by SIGABRT, as a watchdog ends them; only if no wait is known."""
    kinds: frozenset[str]
    """Kinds of all lines that were recognised."""
    stuck_s: float = 0.0
    """Longest time for which a watchdog itself was stuck."""
    stuck: tuple[int, ...] = ()
    """Ranks whose watchdog was stuck, if their lines name them."""
    refused: bool = False
    """Whether a peer refused a connection of NCCL."""
    inside_node: str = ""
    """Kind of the address to which NCCL failed to connect, if other nodes cannot reach such addresses."""
    broken: tuple[int, ...] = ()
    """Ranks that do not wait and in which a thread other than the main thread raised an exception."""
    failure: str = ""
    """How NCCL or gloo failed, from its most specific line; empty if no line says so."""
    warning: str = ""
    """NCCL's first warning."""
    failed: tuple[int, ...] = ()
    """Ranks whose lines report the failure."""
    results: frozenset[str] = frozenset()
    """NCCL's result codes, such as `ncclSystemError`."""
    failed_silently: tuple[int, ...] = ()
    """Ranks that ended with exit code 1, as Python does after any exception, but left no traceback; only if no wait is
    known."""
    has_unnamed_exit: bool = False
    """Whether a process of an unknown rank ended with exit code 1 and left no traceback."""
    absent: tuple[int, ...] = ()
    """Ranks that did not reach a monitored barrier, a call of Horovod, or the set-up of a communicator."""
    limit_s: float = 0.0
    """Timeout of the monitored barrier that they did not reach; 0 if no line states it."""
    unanswered: tuple[int, ...] = ()
    """Ranks whose processes do not answer NCCL's RAS."""
    lost: str = ""
    """Message of the first exception by which a rank noticed that a peer was gone or a call had timed out."""
    timed_out: str = ""
    """How the first rank that gave up waiting says so, such as for a key of the store."""
    lost_peer: tuple[int, ...] = ()
    """Ranks with such an exception, if their lines name them."""
    uses_gloo: bool = False
    """Whether gloo wrote any of the lines."""
    differ: Phrase | str = ""
    """What a check of torch or NCCL reported of calls that do not match; it names one side at most."""
    sizes: str = ""
    """The line with which gloo ended a process because two sizes do not match."""
    minority_sizes: tuple[int, ...] = ()
    """Ranks whose size differs from that of most, if such lines of several ranks show it."""
    peer_calls: tuple[Waiting, ...] = ()
    """Calls in which other ranks lost that process."""
    of_model: bool = False
    """Whether the model fixes the sizes of these calls."""
    possibly_late: tuple[int, ...] = ()
    """Ranks that lost their peers where these timed out, so they may have come too late."""
    side_error: str = ""
    """The first exception of a side thread whose line names no rank."""
    work: LogFact | None = None
    """The last line before the wait about work outside of the training steps, or about their end."""
    worker_died: str = ""
    """What Ray wrote of a worker whose process was gone."""
    without_report: tuple[int, ...] = ()
    """Ranks that torchrun lists without a known line at which they gave up, while that of others is known."""
    unlisted: tuple[int, ...] = ()
    """Few ranks of a node that torchrun does not list, while it lists the others with exit codes of their own."""
    outside: tuple[tuple[tuple[int, ...], Phrase], ...] = ()
    """Ranks that were observed outside of communication, and what they do."""
    threaded: tuple[int, ...] = ()
    """Ranks with a collective in a thread that the program started, beside others that communicate or wait."""

    @property
    def shown_kinds(self) -> frozenset[str]:
        """Kinds of lines that need not be shown in addition to this."""
        again = _FAILED - {"dist_backend_error"} | {"watchdog_abort"}  # One line of a failure shows its place.
        failed = again if "dist_backend_error" in self.kinds else frozenset[str]()
        return _SHOWN if self.waits else failed | (_KINDS["lost"] if self.lost or self.absent else frozenset())

    @property
    def longest(self) -> Waiting:
        """The wait of the most ranks; one without ranks if no wait is known."""
        return self.waits[0] if self.waits else Waiting((), "")

    @property
    def behind(self) -> tuple[int, ...]:
        """Ranks that completed all of their calls and did not make the next one, in which others wait."""
        at = {wait.group: wait.seq for wait in self.waits if wait.seq is not None and wait.counted}
        behind = [rest for rest in self.others if at.get(rest.group, -1) > rest.completed == rest.enqueued]
        return tuple(rank for rest in behind for rank in rest.ranks)

    @property
    def mismatched(self) -> tuple[int, ...]:
        """Ranks with another size than most, or that gloo ended while most were in a call of the model's sizes."""
        of_peers = self.peer_calls[0].ranks if len(self.peer_calls) == 1 and self.of_model else ()
        return self.minority_sizes or (self.aborted if len(self.aborted) < len(of_peers) else ())

    @property
    def at_other_calls(self) -> tuple[int, ...]:
        """Ranks that wait at another line of the user, or else in another collective, than those of the first wait."""
        placed = [wait for wait in self.waits if wait.site]
        placed = placed or [wait for wait in self.waits if wait.ranks and wait.seq is None and wait.op in COUNTED]
        return tuple(rank for wait in placed[1:] for rank in wait.ranks if rank not in placed[0].ranks)

    @property
    def by_position(self) -> tuple[Waiting, ...]:
        """The waits of one group at different positions, the lowest first; empty if there are none."""
        alike: dict[str, list[Waiting]] = {}
        for wait in sorted(self.waits, key=lambda wait: wait.seq or 0):
            if wait.seq is not None and wait.ranks:
                alike.setdefault(wait.group, []).append(wait)
        collectives = [rest for rest in alike.values() if all(wait.counted for wait in rest)]
        spans = [(rest, rest[0].seq or 0, rest[-1].seq or 0) for rest in collectives]
        divided = (rest for rest, low, high in spans if low < high and (rest[0].group or low > _NEAR * high))
        return tuple(next(divided, ()))


def _says(row: str, **figures: object) -> Phrase:
    return Phrase(row, _TABLE["texts"][row], figures)


def _failure(evidence: Evidence, failures: Sequence[LogFact]) -> str:
    """Return how NCCL or gloo failed, from its most specific line; empty if no line says so."""
    reasons = {fact.kind: str(fact.fields.get("error") or fact.fields.get("result")) for fact in reversed(failures)}
    failure = next((reasons[kind] for kind in _BEST_WORDS if kind in reasons), "")
    of_cuda = (fact.fields for fact in evidence.facts if fact.kind == "cuda_error" and "nccl" in fact.fields)
    reason = next((f"Cuda failure '{fields['error']}'" for fields in of_cuda), "")
    # NCCL's result only says that a call of CUDA failed; its own lines have CUDA's reason.
    return f"{failure}: {reason}" if reason and re.search("(?i)cuda ?error", failure) else failure


def symptoms(evidence: Evidence) -> Symptoms | None:
    """Return the state of a job that stands still; None if nothing shows that a rank waits, was lost or failed."""
    stops = {fact.file: fact.line for fact in evidence.facts[::-1] if fact.kind == "job_stopped"}
    held_s = _held_s(evidence)
    # Who was stopped loses its peers: that names no cause, and a wait only if it was longer than one of any step.
    stopped_at = {} if held_s else stops
    told = [f for f in evidence.facts if f.kind not in _OF_PEERS or f.line <= stopped_at.get(f.file, inf)]
    kinds = frozenset(fact.kind for fact in told)
    aborted = {NOBODY if one.rank is None else one.rank for one in evidence.errors if one.signal == "SIGABRT"}
    raised = (of_error(one, NOBODY if one.rank is None else one.rank) for one in evidence.errors if one.type)
    gave_up = [end for end in raised if end.kind in ("lost_peer", "timed_out")]
    before = [end for end in gave_up if end.line <= stops.get(end.file, inf)]
    victims = gave_up if held_s else before
    lost = [end for end in before if end.kind == "lost_peer"]
    bare = [one for one in evidence.errors if one.exit_code == 1 and not one.type]
    warned = [] if kinds & {"cuda_oom", "cpu_oom"} else [fact for fact in evidence.facts if fact.kind == "nccl_warn"]
    seen_waits, outside = _observed(evidence, victims, held_s)
    says_little = not kinds & (_OPENS | _FAILED | {ras.LOST, ras.COUNTS})
    noticed = [fact for fact in told if says_little and not victims and fact.kind in _KINDS["noticed"]]
    if says_little and not (aborted or victims or bare or warned or seen_waits or outside or noticed):
        return None
    failures = [fact for fact in told if fact.kind in _FAILED]
    groups = read_all(evidence)
    possibly_late = _possibly_late(victims)
    waits = _all_waits(evidence, groups, [end for end in victims if (end.rank,) != possibly_late], seen_waits)
    listed = {rank for fact in evidence.facts if fact.kind == "torchrun_list" for rank in fact.fields["ranks"]}
    placed = {rank for wait in waits if wait.site for rank in wait.ranks}
    side = [fact for fact in evidence.facts if fact.kind == "side_error"]
    broken = {fact.rank for fact in side if fact.rank is not None}
    return Symptoms(
        waits=tuple(sorted(waits, key=lambda wait: (bool(wait.behind), -len(wait.ranks), wait.seq or 0))),
        outside=outside,
        unlisted=_unlisted(evidence, listed),
        threaded=tuple(sorted({one.rank for one in evidence.stacks if one.rank is not None and _is_threaded(one)})),
        others=tuple(one for group in groups for one in _others(group)),
        silent=() if evidence.is_cut or held_s else _silent(evidence, groups, waits),
        aborted=tuple(sorted(aborted)) if not waits else (),
        failed_silently=tuple(sorted({one.rank for one in bare if one.rank is not None})) if not waits else (),
        has_unnamed_exit=any(one.rank is None for one in bare),
        kinds=kinds,
        broken=tuple(sorted(broken - {rank for wait in waits for rank in wait.ranks})),
        failure=_failure(evidence, failures),
        warning=shortened(str(warned[0].fields.get("warning")), 160) if warned else "",
        failed=tuple(sorted({fact.rank for fact in failures if fact.rank is not None})),
        without_report=tuple(sorted(listed.union(possibly_late) - placed)) if placed else _outlived(evidence, groups),
        possibly_late=possibly_late,
        side_error=next((shortened(fact.text.strip(), 80) for fact in side if fact.rank is None), ""),
        uses_gloo=any(kind.startswith("gloo_") for kind in kinds) or any(end.raised_by_gloo for end in victims),
        results=frozenset(str(fact.fields["result"]) for fact in failures if fact.kind == "nccl_result"),
        **_peers_lost(victims, lost, noticed),
        **_met_sizes(evidence, lost),
        **_reported(evidence),
    )


def _outlived(evidence: Evidence, groups: Sequence[GroupLog]) -> tuple[int, ...]:
    """Return the few ranks that ended only after the watchdogs of all others had reported a timeout.

    They raised, or had to be killed: torchrun sends SIGKILL 30 s after SIGTERM, and Slurm when it ends the job. What
    waits as long as the others reports it by then.
    """
    reported = {rank for group in groups for rank in (*group.waits, *group.counters)}
    tasks = (end for fact in evidence.facts if fact.kind == "srun_task" for end in of_srun(fact))
    ended = {end.rank for end in (*evidence.errors, *tasks) if end.signal == "SIGKILL" and end.rank is not None}
    stamps = (stamp_s(wait.fact) for group in groups for wait in group.waits.values())
    first = min((at for at in stamps if at is not None), default=inf)
    for error in evidence.errors:
        if error.type and error.rank is not None and error.time_s is not None and is_after(error.time_s, first):
            ended |= {error.rank} if of_error(error, error.rank).by_itself else set()
    late = tuple(sorted(ended - reported))
    return late if len(late) < len({rank for group in groups for rank in group.waits}) else ()


def _peers_lost(victims: Sequence[Ending], lost: Sequence[Ending], noticed: Sequence[LogFact]) -> dict[str, Any]:
    """Return the fields about ranks that lost a peer or timed out: from their exceptions, else from single lines."""
    texts = {fact.kind: str(fact.fields["what"]) for fact in reversed(noticed)}
    ends = [*lost, *(end for end in victims if end.kind == "timed_out")]
    texts |= {end.kind: _CPP_FILE.sub("", end.message) for end in reversed(ends)}
    ranks = {end.rank for end in lost} | {fact.rank for fact in noticed}
    named = tuple(sorted(rank for rank in ranks if rank is not None and rank != NOBODY))
    lost_text = texts.get("lost_peer", texts.get("reached_barrier", ""))
    return {"lost": lost_text, "lost_peer": named, "timed_out": texts.get("timed_out", "")}


def _reported(evidence: Evidence) -> dict[str, Any]:
    """Return the fields that lines of one kind each tell, whatever else the log holds."""
    of_kind: defaultdict[str, list[LogFact]] = defaultdict(list)
    for fact in evidence.facts:
        of_kind[fact.kind].append(fact)
    stuck = {fact.rank: fact.fields.get("stuck_s") for fact in of_kind["monitor_stuck"]}
    late = [set(fact.fields["ranks"]) for fact in (*of_kind["monitored_barrier"], *of_kind["missing_ranks"])]
    late = late or [{fact.fields["root"]} for fact in left_waiting(evidence)] or [{*ras.named(evidence, ras.COUNTS)}]
    connects = of_kind["nccl_connect"]
    dead = (fact for fact in of_kind["worker_died"] if "stopped" not in fact.fields)
    return {
        "stuck_s": max((float(value) for value in stuck.values() if isinstance(value, int)), default=0.0),
        "stuck": tuple(sorted(rank for rank in stuck if rank is not None)),
        "refused": any("refused" in str(fact.fields.get("why")) for fact in connects),
        "inside_node": next(filter(None, (network_inside("node", fact.fields.get("peer")) for fact in connects)), ""),
        "absent": tuple(sorted({fact.fields["root"] for fact in of_kind["nccl_id_timeout"]}.union(*late))),
        "limit_s": min((fact.fields["timeout_ms"] / 1000 for fact in of_kind["monitored_barrier"]), default=0.0),
        "unanswered": tuple(ras.named(evidence, ras.LOST)),
        "differ": next(map(_one_side, of_kind["calls_differ"]), ""),
        "worker_died": next((str(fact.fields["detail"]) for fact in dead), ""),
        "work": next((fact for fact in evidence.facts if fact.kind in ("host_work", "host_progress")), None),
    }


def left_waiting(evidence: Evidence) -> list[LogFact]:
    """Return the lines of ranks that rank 0 left waiting in a monitored barrier, unless it is gone."""
    kinds = {fact.kind for fact in evidence.facts}
    is_gone = kinds & _KINDS["closed"] and "gloo_timeout" not in kinds
    return [fact for fact in evidence.facts if fact.kind == "reached_barrier" and not is_gone]


def _unlisted(evidence: Evidence, listed: set[int]) -> tuple[int, ...]:
    """Return few ranks of a node that torchrun does not list, unless it or the kernel ended any of them."""
    rest = sorted({*range(min(listed, default=0), max(listed, default=0) + 1), *evidence.launched} - listed)
    is_sent = any(error.signal in _SENT for error in evidence.errors)
    return tuple(rest) if 2 * len(rest) < len(listed) and not is_sent else ()


def _is_threaded(dump: Stacks) -> bool:
    """Return whether two threads communicate, or one does and another thread that the program started runs its code."""
    code = [at and (at.file, at.function) for at in map(target, dump.threads)]
    own = [number for number, one in enumerate(dump.threads) if one.main or code[number]]
    inside = [number for number in own if collective_of(dump.threads[number].frames, whole=True)]
    return len(inside) > 1 or any(code[number] and code.count(code[number]) > 1 for number in inside)


def _possibly_late(victims: Sequence[Ending]) -> tuple[int, ...]:
    """Return the ranks that only lost their peers in the call in which those timed out. A call that all ranks make
    alike ends once they have all come, and a rank that times out closes its connections.
    """
    sites = _within(victims)
    late = {end.rank for end in victims if end.kind == "lost_peer"} & sites.keys()
    ops = {op.removeprefix("i") for op, _ in sites.values()}
    one_sided = len({*sites.values()}) > 1 or ops & (ROOTED | {"send", "recv"}) or late == sites.keys()
    return () if one_sided or NOBODY in sites else tuple(sorted(late))


def _met_sizes(evidence: Evidence, lost: Sequence[Ending]) -> dict[str, Any]:
    """Return the fields about a process that gloo ended as two sizes do not match, and where its peers lost it."""
    facts = [fact for fact in evidence.facts if fact.kind == "gloo_mismatch"]
    if not facts:
        return {}
    places = _within(lost)
    of_model = bool(places) and all(_of_model(end) for end in lost if end.rank in places)
    calls = tuple(Waiting(ranks, op, site=site) for (op, site), ranks in _by_call(places).items())
    sizes, minority = shortened(facts[0].text.strip(), 80), _minority_sizes(facts, evidence.world_size or 0)
    return {"sizes": sizes, "minority_sizes": minority, "peer_calls": calls, "of_model": of_model}


def _minority_sizes(facts: Sequence[LogFact], world: int) -> tuple[int, ...]:
    """Return the ranks whose own size is not that of most. A line also has the size of a peer, which may have none."""
    lines = {fact.rank: fact.fields for fact in facts if fact.rank is not None and "expected_bytes" in fact.fields}
    own = {rank: fields["expected_bytes"] for rank, fields in lines.items()}
    (majority_size, count), *_ = Counter(own.values()).most_common(1) or [(0, 0)]
    if count < 2 or len({*own.values(), *(fields["received_bytes"] for fields in lines.values())}) != 2:
        return ()
    silent = [rank for rank in range(world) if rank not in own]
    minority = [rank for rank, size in own.items() if size != majority_size] or (silent if len(silent) == 1 else [])
    return tuple(sorted(minority)) if len(minority) < count else ()


def _of_model(end: Ending) -> bool:
    return any(frame.function == "_engine_run_backward" or _OF_MODEL.search(frame.file) for frame in end.frames)


def _within(victims: Sequence[Ending]) -> dict[int, tuple[str, Frame]]:
    return {end.rank: place for end in victims if (place := collective_of(end.frames)) is not None}


def _by_call(places: Mapping[int, tuple[str, Frame | None]]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the ranks in each call, an operation at a line, without those that no line names."""
    ranks_at: dict[tuple[str, str], tuple[int, ...]] = {}
    for rank, (op, at) in sorted(places.items()):
        call = op, f"{file_name(at.file)}:{at.line}" if at else ""
        ranks_at[call] = ranks_at.get(call, ()) + ((rank,) if rank != NOBODY else ())
    return ranks_at


def _silent(evidence: Evidence, groups: Sequence[GroupLog], waits: Sequence[Waiting]) -> tuple[int, ...]:
    spoke = {fact.rank for fact in evidence.facts} | {error.rank for error in evidence.errors}
    spoke |= {dump.rank for dump in evidence.stacks}
    spoke = spoke.union(*(group.waits for group in groups), *(group.counters for group in groups))
    highest = max((rank for rank in spoke if rank is not None), default=-1)
    # A job has at least as many ranks as any of its groups; one that is smaller than a rank's number tells nothing.
    sizes = (wait.members or 0 for wait in waits if (wait.members or 0) > highest)
    world = evidence.world_size or max(sizes, default=0)
    # If the size is unknown, most ranks up to the highest must have lines: the log of one node has those of few.
    world = world or (highest + 1 if 2 * len(spoke - {None}) > highest + 1 else 0)
    return tuple(rank for rank in range(world) if rank not in spoke)


def not_set_up(evidence: Evidence) -> tuple[str, tuple[int, ...], tuple[int, ...], list[LogFact]] | None:
    """Return (`complete` or `reach`, few ranks that did not, the others, lines) of NCCL's set-up of all ranks.

    A rank of whose set-up no line tells has to have other lines: the log may lack those of its node.
    """
    world, spoke = {*range(evidence.world_size or 0)}, {fact.rank for fact in evidence.facts}
    by_comm: defaultdict[object, list[LogFact]] = defaultdict(list)
    for fact in (fact for fact in evidence.facts if fact.kind == "nccl_init"):
        if fact.fields["nranks"] == len(world) and fact.rank in (None, fact.fields["comm_rank"]):
            by_comm[fact.fields.get("comm_id")].append(fact)
    for facts in by_comm.values():
        began, complete = ({f.fields["comm_rank"] for f in facts if f.fields["phase"] == phase} for phase in _PHASES)
        reached = complete or began
        missing = world - reached
        if missing and len(missing) < len(reached) and missing <= spoke | began:
            stage = "complete" if missing <= began else "reach"
            return stage, tuple(sorted(missing)), tuple(sorted(reached)), facts
    return None


def _held_s(evidence: Evidence) -> float:
    """Return the time (s) for which ranks went on waiting after a launcher's signal to end; 0 if they ended by it."""
    kinds = ("torchrun_signal", "stop_ignored")
    first, last = ([at for fact in evidence.facts if fact.kind == kind and (at := stamp_s(fact))] for kind in kinds)
    return max(last) - min(first) if first and last else 0.0


def _observed(
    evidence: Evidence, victims: list[Ending], held_s: float
) -> tuple[list[Waiting], tuple[tuple[tuple[int, ...], Phrase], ...]]:
    """Return the calls in which observations, single stacks or exceptions show ranks, and what the other ranks do."""
    dumps = {one.rank: one for one in evidence.stacks if one.rank is not None}
    is_named = bool(dumps and evidence.facts)
    spied = {one.pid: one for one in evidence.stacks if one.pid is not None and not is_named}
    nameless = enumerate((pid for pid, one in spied.items() if one.rank is None), 1)
    pids = {NOBODY - number: pid for number, pid in nameless}
    dumps |= {rank: spied[pid] for rank, pid in pids.items()}
    observed = {rank: seen for rank, seen in observations(evidence).items() if not seen.exited}
    inside, activities = places(observed, dumps)
    blocked_s = {rank: observed[rank].blocked_s for rank in inside if observed[rank].blocked_s >= STALL_S}
    sites = {rank: (inside[rank].op, inside[rank].site) for rank in blocked_s}
    mains = {rank: main_thread(dump) for rank, dump in dumps.items() if not observed}
    frames = [(rank, main.frames) for rank, main in mains.items() if main is not None]
    for rank, path in [*frames, *((end.rank, end.frames) for end in victims if end.rank != NOBODY)]:
        sites |= {rank: place} if (place := collective_of(path)) is not None else {}
    if len({*sites.values()}) < 2 and not (observed or held_s or len(spied) > 1):
        return [], ()
    idle = (observed[rank].stopped or observed[rank].idle_s >= STALL_S for rank in activities)
    is_still = not inside and all(idle) and not any(at.doing == "importing" for at in activities.values())
    activities |= {rank: doing(dump) for rank, dump in dumps.items() if spied and rank not in sites}
    does: dict[Phrase, list[int]] = {}
    for rank, at in activities.items():
        row = f"does{'_at' if at.frame else ''}{'_process' if rank in pids else ''}"
        does.setdefault(_says(row, words=at.words, at=at.frame, pid=pids.get(rank)), []).append(rank)
    waits = []
    for (op, site), ranks in _by_call(sites).items():
        processes = tuple(sorted(pids[rank] for rank in ranks if rank in pids))
        waited_s = min(blocked_s.get(rank, held_s) for rank in ranks) or None
        waits.append(Waiting(ranks, op, waited_s=waited_s, site=site, processes=processes))
    return waits, tuple((tuple(ranks), text) for text, ranks in does.items()) if waits or is_still else ()


def _one_side(fact: LogFact) -> Phrase | str:
    if "call_a" in fact.fields:
        return _says("called", rank=fact.fields["rank_a"], call=shortened(str(fact.fields["call_a"]), 60))
    return fact.fields.get("sizes") or _says("around", rank=fact.fields.get("rank"))


def _all_waits(
    evidence: Evidence, groups: Sequence[GroupLog], victims: list[Ending], seen: list[Waiting]
) -> list[Waiting]:
    """Return the calls in which ranks wait, from lines of watchdogs, and from exceptions or else what was `seen`.

    A single rank that may have come too late is no victim. Of several such ranks some waited too: their peer that timed
    out first closed its connections.
    """
    later = enqueued_behind(groups)
    placed = _named([wait for group in groups for wait in _waits(evidence, group, later)])
    unplaced = _without_position(evidence, victims)
    return placed + (unplaced if any(wait.site for wait in unplaced) else seen or unplaced)


def _waits(evidence: Evidence, group: GroupLog, later: set[tuple[str, int]]) -> list[Waiting]:
    alike: dict[tuple[int, str, int | None], list[int]] = {}
    facts: dict[int, LogFact] = {}
    for rank, wait in group.waits.items():
        alike.setdefault((wait.seq, wait.name, wait.numel if wait.even else None), []).append(rank)
        facts[rank] = wait.fact
    for rank, counters in group.counters.items():
        if rank not in group.waits and counters.work is not None:
            # A status line names the position only: the call is that of the other ranks there, if they agree.
            at_position = [key for key in alike if key[0] == counters.work]
            alike.setdefault(at_position[0] if len(at_position) == 1 else (counters.work, "", None), []).append(rank)
            facts[rank] = counters.fact
    label = "" if group.mixed or group.name == UNNAMED else group.label
    sizes = filter(None, map(members_of, facts.values()))
    members = next(sizes, evidence.world_size if group.default else None)
    made = []
    for (seq, op, numel), ranks in sorted(alike.items(), key=lambda item: (item[0][:2], item[0][2] or 0, item[1])):
        progress = [group.counters[rank] for rank in sorted(ranks) if rank in group.counters]
        timed = next((facts[rank] for rank in sorted(ranks) if rank in group.waits), facts[ranks[0]])
        completed = progress[0].completed if progress else None
        enqueued = max((counters.enqueued for counters in progress), default=None)
        call = (tuple(sorted(ranks)), op, seq, numel, label, members)
        behind = tuple(rank for rank in sorted(ranks) if (group.name, rank) in later)
        made.append(Waiting(*call, completed, enqueued, *_since(timed), behind=behind))
    return made


def _named(waits: list[Waiting]) -> list[Waiting]:
    """Add ranks whose lines name no group to those that wait in the same call, if a single group has such a call."""
    named = [wait for wait in waits if wait.group]
    at: dict[tuple[int | None, str, int | None], list[int]] = {}
    for number, wait in enumerate(named):
        at.setdefault((wait.seq, wait.op, wait.numel), []).append(number)
    for wait in (wait for wait in waits if not wait.group):
        same = at.setdefault((wait.seq, wait.op, wait.numel), [])
        same = same or at.get((wait.seq, "", None), [])  # A status names the position alone.
        if len(same) == 1:
            one, ranks = named[same[0]], tuple(sorted({*wait.ranks, *named[same[0]].ranks}))
            known = {"waited_s": wait.waited_s, "timeout_s": wait.timeout_s, "since": wait.since} if not one.op else {}
            members, numel = one.members or wait.members, wait.numel
            named[same[0]] = replace(one, ranks=ranks, op=wait.op, numel=numel, members=members, **known)
        else:
            at[wait.seq, wait.op, wait.numel].append(len(named))
            named.append(wait)
    return named


def _others(group: GroupLog) -> list[Progress]:
    alike: dict[tuple[int, int], list[int]] = {}
    for rank, counters in group.counters.items():
        if rank not in group.waits and counters.work is None:
            alike.setdefault((counters.completed, counters.enqueued), []).append(rank)
    return [Progress(tuple(sorted(ranks)), group.label, *key) for key, ranks in sorted(alike.items())]


def _without_position(evidence: Evidence, victims: list[Ending]) -> list[Waiting]:
    """Return the waits whose lines give no position or no rank: those of torch 1.x and of gloo, and single lines."""
    alike: dict[tuple[str, int | None, int | None], list[LogFact]] = {}
    within = _within(victims)
    at_barrier = left_waiting(evidence)  # Each repeats a timeout of gloo.
    timeouts = [fact for fact in evidence.facts if fact.kind == "gloo_timeout" and not at_barrier]
    if timeouts and within.keys() >= {NOBODY if fact.rank is None else fact.rank for fact in timeouts}:
        since = (None, None, "", evidence.world_size, None, None, *_since(timeouts[0]))
        return [Waiting(ranks, op, *since, site) for (op, site), ranks in _by_call(within).items()]
    reported = [fact for fact in evidence.facts if fact.kind == "watchdog_timeout"] + at_barrier
    placed = {fact.rank: fact.fields["seq"] for fact in reported if fact.rank is not None and "seq" in fact.fields}
    for fact in reported:
        seq, numel = fact.fields.get("seq"), fact.fields.get("numel_in")
        if fact.rank not in placed and (seq is None or (fact.rank is None and seq not in placed.values())):
            alike.setdefault((operation(str(fact.fields.get("op", ""))), seq, numel), []).append(fact)
    for fact in timeouts:
        alike.setdefault((str(_says("transfer", direction=fact.fields.get("direction"))), None, None), []).append(fact)
    ranks = [tuple(sorted({fact.rank for fact in facts if fact.rank is not None})) for facts in alike.values()]
    return [
        Waiting(who, *call, "", members_of(facts[0]), None, None, *_since(facts[0]))
        for who, (call, facts) in zip(ranks, alike.items(), strict=True)
    ]


def _since(fact: LogFact) -> tuple[float | None, float | None, str]:
    """Return how long a call had waited (s), its timeout (s), and when the wait began (`HH:MM:SS`, or empty)."""
    timeout_ms = fact.fields.get("timeout_ms")
    waited_ms = fact.fields.get("ran_ms", timeout_ms)
    waited_s, timeout_s = (value / 1000 if isinstance(value, int) else None for value in (waited_ms, timeout_ms))
    at_s = stamp_s(fact)
    since = "" if at_s is None or waited_s is None else time.strftime("%H:%M:%S", time.gmtime(at_s - waited_s))
    return waited_s, timeout_s, since
