"""How each rank of a job ended: from its error records, log lines, Slurm, torchrun's list and dtk's own records."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from math import inf

from msgspec.structs import replace

from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence import endings as ends
from diagnostics.evidence.endings import Ending
from diagnostics.evidence.logs.patterns import ZONE_S, moment
from diagnostics.evidence.model import CLAUSE, Evidence, LogFact, RankError, shortened
from diagnostics.evidence.readers import watch
from diagnostics.evidence.readers.log import training_ended
from diagnostics.evidence.readers.ring import RingFile

_TIMEOUT_FACTS = {"gloo_timeout", "watchdog_timeout", "monitored_barrier", "store_timeout"}
_MISMATCH_FACTS = {"gloo_mismatch", "collective_mismatch_text"}
_CLOSED_FACTS = {"gloo_closed", "gloo_reset", "nccl_peer_closed"}
_LOOPBACK = re.compile(r"\[?(?:127\.|::1\b|::ffff:127\.)")
_ZONES_S = 15 * 3600.0  # Zones differ by less than this.
NOTICED_S = 60.0
"""Time within which a launcher notices that a process was killed, with what `dmesg -T` is off after days."""
_PEERS = 2  # Minimum number of processes that tell it: one of them may tell it of its own rank.
_OF_RAY: tuple[ends.Kind, ...] = ("killed", "raised", "unknown")  # What its lines may say of an actor.
_FAILED_FACTS = _CLOSED_FACTS | {"dist_backend_error", "lost_peer"}


def rank_endings(evidence: Evidence) -> dict[int, Ending]:
    """Return how each rank ended, for the ranks with any evidence of it."""
    candidates: defaultdict[int, list[Ending]] = defaultdict(list)
    for error in evidence.errors:
        if error.rank is not None and error.rank >= 0 and ends.ends_a_rank(error):
            candidates[error.rank].append(_of_error(evidence, error, error.rank))
    for fact in _unhandled(evidence):
        if fact.rank is not None and (ending := ends.of_fact(fact, fact.rank)) is not None:
            candidates[ending.rank].append(ending)
    _add_exit_events(evidence, candidates)
    if not evidence.launched and not any(fact.kind.startswith("torchrun_") for fact in evidence.facts):
        # Without a launcher within the tasks of Slurm, each task is a rank.
        stopped: dict[str, int] = {}
        for fact in evidence.facts:
            if fact.kind == "job_stopped":
                stopped.setdefault(fact.file, fact.line)
            for ending in ends.of_srun(fact) if fact.kind == "srun_task" else ():
                by_slurm = ending.signal == "SIGKILL" and stopped.get(fact.file, fact.line) < fact.line
                candidates[ending.rank].append(replace(ending, kind="stopped") if by_slurm else ending)
                if ending.signal != "SIGKILL" and ending.exit_code != 0:  # --kill-on-bad-exit ends the other tasks.
                    stopped.setdefault(fact.file, fact.line)
    _add_unlisted(evidence, candidates)
    # Ranks that received SIGINT individually: after a SIGINT to all ranks, torchrun ends without a list of failures.
    listed = {rank for fact in evidence.facts if fact.kind == "torchrun_list" for rank in fact.fields["ranks"]}
    for rank in sorted(listed & set(candidates)):
        interrupted = next((end for end in candidates[rank] if not end.type and end.signal == "SIGINT"), None)
        if interrupted is not None:
            frames = next((end.frames for end in candidates[rank] if end.frames), ())
            candidates[rank].append(replace(interrupted, kind="killed", frames=frames))
    endings = {
        rank: min(endings, key=lambda end: (ends.ORDER[end.kind], not end.frames, str(end.summary), end.record.file))
        for rank, endings in candidates.items()
    }
    return endings | _killed_for_memory(evidence, endings) | _after_side_thread(evidence, endings)


def _of_error(evidence: Evidence, error: RankError, rank: int) -> Ending:
    """Return the ending that an error describes; a rejected call is a mismatch if a check of calls reported one."""
    ending = ends.of_error(error, rank)
    checked = ending.detail == "invalid_usage" and any(fact.kind == "calls_differ" for fact in evidence.facts)
    return replace(ending, kind="mismatch") if checked else ending


def _after_side_thread(evidence: Evidence, endings: Mapping[int, Ending]) -> dict[int, Ending]:
    """Return the ranks that left an exit code only but had an exception in a side thread, which explains it."""
    facts = (fact for fact in evidence.facts if fact.kind == "side_error")
    aside = {fact.rank: {"side_error": shortened(fact.text, CLAUSE), "frames": fact.fields["frames"]} for fact in facts}
    return {
        rank: replace(end, kind="raised", **aside[rank])
        for rank, end in endings.items()
        if end.kind == "failed" and end.only_exit_code and rank in aside
    }


def _of_python(fact: LogFact) -> bool:
    """Return whether a line about a killed process may be about a rank: of its time, of Python, Ray's or no program."""
    return "apart" not in fact.fields and str(fact.fields.get("name", "python")).startswith(("python", "pt_", "ray::"))


def memory_kills(evidence: Evidence) -> list[LogFact]:
    """Return the lines about processes that were killed because memory ran out: the kernel's, then Slurm's."""
    kernel = [fact for fact in evidence.facts if fact.kind == "kernel_oom" and "apart" not in fact.fields]
    return kernel + [f for f in evidence.facts if f.kind == "srun_task" and "oom" in {e.kind for e in ends.of_srun(f)}]


def _killed_for_memory(evidence: Evidence, endings: Mapping[int, Ending]) -> dict[int, Ending]:
    """Return the ranks that the kernel ended by SIGKILL when memory ran out.

    They are identified by the process ids in the launcher's list. If none of them matches (they differ between a
    container and its host, and Slurm names none), all ranks ended by SIGKILL count, unless they outnumber the kills.
    """
    killed = [rank for rank, end in endings.items() if end.kind == "killed" and end.signal == "SIGKILL"]
    lists = [fact.fields.get("rank_of", {}) for fact in evidence.facts if fact.kind == "torchrun_list"]
    rank_of: dict[int, int] = {pid: rank for ranks in lists for pid, rank in ranks.items()}
    by_pid = {rank_of[pid]: fact for fact in memory_kills(evidence) if (pid := fact.fields.get("pid")) in rank_of}
    if not by_pid and (lines := [fact for fact in memory_kills(evidence) if _of_python(fact)]):
        each = {fact.fields.get("pid", fact.line): fact.fields for fact in lines}.values()  # A kill may have two lines.
        kills = max(sum(fields.get("kills", fields.get("count", 1)) for fields in each), 1)
        by_pid = dict.fromkeys(killed, lines[0]) if len(killed) <= kills else {}
        # A line that is not dated may be of any time.
        times = ((rank, moment(by_pid[rank].text, at), at) for rank in by_pid if (at := endings[rank].time_s))
        others = {rank for rank, at_s, end_s in times if at_s and not in_other_zone(at_s - end_s, NOTICED_S)}
        by_pid = {rank: fact for rank, fact in by_pid.items() if rank not in others}
    return {rank: ends.by_kernel(endings[rank], fact) for rank, fact in by_pid.items() if rank in killed}


def in_other_zone(apart_s: float, within_s: float) -> bool:
    """Return whether times of two writers may be of one moment, give or take `within_s`, in whatever zones."""
    return abs(apart_s) < _ZONES_S and abs((apart_s + ZONE_S / 2) % ZONE_S - ZONE_S / 2) <= within_s


def after_timeout(evidence: Evidence, endings: Mapping[int, Ending]) -> dict[int, Ending]:
    """Return the endings that are effects of a timeout which the rank's own watchdog had reported before.

    The watchdog aborts the communicator, so that the main thread continues with whatever is in the buffers, and then
    ends the process. A signal or an exit code is always later than that; an exception is if its line in the log is.
    And srun prints at once how a task ended, so it is later than any timeout above its line.
    """
    first: dict[int, LogFact] = {}
    for fact in evidence.facts:
        own = fact.kind == "watchdog_timeout" or (fact.kind == "watchdog_status" and "work" in fact.fields)
        if own and fact.rank is not None:
            first[fact.rank] = min(first.get(fact.rank, fact), fact, key=lambda line: (line.file, line.line))
    timed_out: dict[str, int] = {}
    for line in first.values():
        timed_out[line.file] = min(line.line, timed_out.get(line.file, line.line))
    srun = {(fact.file, fact.line) for fact in evidence.facts if fact.kind == "srun_task"}

    def is_later(rank: int, end: Ending) -> bool:
        if own := first.get(rank):
            return not end.type or (end.file == own.file and end.line > own.line)
        return end.kind != "oom" and (end.file, end.line) in srun and timed_out.get(end.file, inf) < end.line

    return {rank: end for rank, end in endings.items() if end.exited_early and is_later(rank, end)}


def settle_exit_codes(endings: dict[int, Ending], others: bool, awaited: Collection[int] = ()) -> dict[int, Ending]:
    """Treat a single rank's exit code of 1 as its own error; if `others` wait, it may be that of a victim.

    The `awaited` ranks are none, as their calls show, and an exception would be in their record.
    """
    failed = {rank: end for rank, end in endings.items() if end.kind == "failed"}
    alone: ends.Kind | None = "raised" if not others and len(endings) == 1 else None
    kinds: dict[int, ends.Kind | None] = {rank: "exited" if rank in awaited else alone for rank in failed}
    return endings | {rank: replace(failed[rank], kind=kind) for rank, kind in kinds.items() if kind is not None}


def add_unnamed(evidence: Evidence, endings: dict[int, Ending], candidates: list[int]) -> dict[int, Ending]:
    """Add an ending that a log shows without a rank, if no rank is known to have failed by itself.

    That is an exception that is no effect of another rank; if there is none, a line about memory or a device, a kill by
    the kernel, or a lost worker of Ray. It must be the only one. If only bare exit codes are known, an exception
    about a lost peer counts: it shows that another rank failed before. With several candidates its rank is `UNNAMED`.
    """
    if usage := next((error for error in evidence.errors if error.rank is None and error.type == "SystemExit"), None):
        # argparse's message says more than the exit code that follows from it.
        bare_codes = [rank for rank, end in endings.items() if end.kind == "exited" and end.only_exit_code]
        endings = endings | {rank: ends.of_error(usage, rank) for rank in bare_codes}
    if any(ending.by_itself for ending in endings.values()):
        return endings
    unassigned = [error for error in evidence.errors if error.rank is None and ends.ends_a_rank(error)]
    world = evidence.world_size or 0
    sizes = [size for size in range(1, world + 1) if world % size == 0]  # Of a node.
    local = {rank % size for rank in candidates for size in sizes}  # Others were those of ranks that waited.
    unassigned = [error for error in unassigned if not local or error.local_rank in {None, *local}]
    raised = [error for error in unassigned if error.type]
    failed = [rank for rank, end in endings.items() if end.kind == "failed"]
    # A single exception and a single exit code of 1, with which Python ends, belong to one process.
    present = candidates
    candidates = candidates if len(candidates) == 1 or len(raised) > 1 or len(failed) > 1 else failed
    rank = candidates[0] if len(candidates) == 1 else UNNAMED
    # An exception says more than the exit code that follows from it, and the kernel more than a launcher's SIGKILL.
    exit_codes = [] if memory_kills(evidence) else unassigned
    unnamed = [_of_error(evidence, error, rank) for error in raised or exit_codes]
    own = [ending for ending in unnamed if ending.by_itself]
    if raised and not own:  # A process that ended raises nothing later, so another one was lost.
        at = raised[0].file, raised[0].line
        before = (_of_error(evidence, error, rank) for error in exit_codes if (error.file, error.line) < at)
        own = [ending for ending in before if ending.by_itself and ending.file == at[0]]
    if not present and len({(end.kind, end.file) for end in own}) == 1:
        own = own[:1]  # The first of one log: what follows may be its consequence, or that of other ranks.
    if not own:
        died = [fact for fact in evidence.facts if fact.kind == "worker_died"]  # Reported by Ray.
        # Unless it says more, Ray writes the same line for a signal, an exit code, and `ray stop`.
        kinds = (next((kind for kind in _OF_RAY if kind in fact.fields), _OF_RAY[-1]) for fact in died)
        workers = (ends.of_line(f, rank, kind, text=f.fields["detail"]) for f, kind in zip(died, kinds, strict=True))
        own = [*_of_devices(evidence, rank, bool(failed)), *workers][:1]
    if not own and all(end.kind == "failed" for end in endings.values()):
        # The exit code may be that of the rank that lost its peer, so it shows no rank's own error.
        own = [ending for ending in unnamed or _of_libraries(evidence) if ending.victim][:1]
    own = own or _exited_unlisted(evidence, endings, present)
    return {**endings, own[0].rank: own[0]} if len(own) == 1 else endings


def _unhandled(evidence: Evidence) -> list[LogFact]:
    handled: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
    for fact in evidence.facts:
        text = str(fact.fields.get("message", "")).partition("\n")[0]
        if fact.kind in ("handled_error", "side_error") and text:
            handled[fact.file, fact.rank].append(text)
    return [f for f in evidence.facts if not any(text in f.text for text in handled.get((f.file, f.rank), ()))]


def _of_devices(evidence: Evidence, rank: int, failed: bool) -> Iterator[Ending]:
    """Yield the endings that lines without a rank about memory and devices describe.

    An out-of-memory error in a library's own wording was caught, so it only counts if a rank `failed` for an unknown
    reason.
    """
    for fact in _unhandled(evidence):
        ended_job = fact.kind in {"cuda_error", "cpu_oom"} and not {"warned", "ends"}.isdisjoint(fact.fields)
        if fact.rank is None and (ended_job or (fact.kind == "cuda_oom" and (failed or ends.is_uncaught(fact.text)))):
            yield from filter(None, [ends.of_fact(fact, rank)])
        elif fact.kind == "kernel_oom" and _of_python(fact) and not training_ended(evidence):  # Else another job's.
            yield ends.by_kernel(ends.of_line(fact, rank, "killed"), fact)


def _of_libraries(evidence: Evidence) -> Iterator[Ending]:
    closings = left_first(evidence)
    for fact in _unhandled(evidence):
        if fact.kind in _FAILED_FACTS or fact in closings:
            rank = UNNAMED if fact.rank is None else fact.rank
            kind = ends.kind_of_exception("DistBackendError", fact.text)
            yield replace(ending := ends.of_line(fact, rank, kind), text=ending.quoted)


def left_first(evidence: Evidence) -> list[LogFact]:
    """Return the lines in which several processes of one node tell that one rank, and no other, closed connections.

    Where a job ends, its ranks close their connections one after the other, and each process tells it of all.
    """
    lines = [fact for fact in evidence.facts if fact.kind == "nccl_peer_left" and "process" in fact.fields]
    peers = {str(fact.fields["process"]) for fact in lines}
    ranks = {(str(fact.fields["process"]).partition(":")[0], fact.fields["local"]) for fact in lines}
    return lines if len(ranks) == 1 and len(peers) >= _PEERS else []


def peer_vanished(evidence: Evidence, endings: Mapping[int, Ending]) -> bool:
    """Return whether a connection broke without any timeout, which means that a process ended before the others.

    After the verdict of `dtk watch`, which then ends all of them, it means nothing.
    """
    kinds, stopped_s = {fact.kind for fact in evidence.facts}, watch.verdict_s(evidence)
    closed = any(ending.connection_closed and (ending.time_s or 0.0) < stopped_s for ending in endings.values())
    return not kinds & _TIMEOUT_FACTS and (closed or (stopped_s == inf and bool(kinds & _CLOSED_FACTS)))


def mismatch_facts(evidence: Evidence) -> list[LogFact]:
    """Return lines in which gloo or torch reports that sizes or operations differ between ranks."""
    return [fact for fact in evidence.facts if fact.kind in _MISMATCH_FACTS or ends.MISMATCH_TEXT.search(fact.text)]


def _add_exit_events(evidence: Evidence, candidates: defaultdict[int, list[Ending]]) -> None:
    """Add the ranks of a dtk run or watch that recorded an end in order, unless another record is more precise."""
    facts = (fact for fact in evidence.facts if fact.kind == watch.IN_ORDER)
    exits = {fact.rank: (fact.file, fact.time_s, fact.text) for fact in facts if fact.rank is not None}
    events_of = evidence.run.events if evidence.run is not None and evidence.run.status is not None else {}
    for rank, events in events_of.items():
        last = events[-1] if events else {}
        if last.get("name") == "end" and last.get("exit_code") == 0:
            at = last.get("time_s")
            exits[rank] = f"events/rank_{rank:05d}.jsonl", at if isinstance(at, float) else None, ""
    for rank, (file, time_s, text) in exits.items():
        if all(end.kind == "killed" and end.signal is None for end in candidates.get(rank, [])):
            candidates[rank] = [
                Ending(rank=rank, file=file, line=0, type="", kind="exited", time_s=time_s, exit_code=0, quoted=text)
            ]


def _add_unlisted(evidence: Evidence, candidates: defaultdict[int, list[Ending]]) -> None:
    """Add the ranks that ended with exit code 0: torchrun lists the ranks that failed or were stopped, and not these.

    It lists one node's processes, older versions not all of them; so all that it stopped must be in its list.
    """
    best = [min(endings, key=lambda end: ends.ORDER[end.kind]) for endings in candidates.values()]
    if (listed_all := _whole_list(evidence)) is None or any(end.by_itself or end.kind == "failed" for end in best):
        return
    ranks = listed_all.fields["ranks"]
    launched: Collection[int] = evidence.launched
    if not launched:  # Ranks whose rings were written on the host of the listed ones: the same launcher started them.
        hosts = {file.rank: file.host() for file in evidence.handles(RingFile) if file.rank is not None}
        listed = {hosts[rank] for rank in ranks if hosts.get(rank)}
        beside = [rank for rank, host in hosts.items() if host in listed and len(listed) == 1]
        beside += listed_all.fields.get("beside", []) if any(end.connection_closed for end in best) else []
        barriers = (
            fact.fields for fact in evidence.facts if fact.kind == "monitored_barrier"
        )  # Else it had stopped them.
        beside += [rank for fields in barriers for rank in fields.get("ranks", ())]
        launched = {*range(min(ranks), max(ranks) + 1), *beside}
    for rank in sorted(set(launched) - set(ranks) - set(candidates)):
        candidates[rank] = [ends.of_line(listed_all, rank, "exited", quoted="", exit_code=0, unlisted=True)]


def _whole_list(evidence: Evidence) -> LogFact | None:
    """Return torchrun's only list, if it holds all processes of its node that failed or were stopped."""
    lists = [fact for fact in evidence.facts if fact.kind == "torchrun_list"]
    ended = {f.fields.get("pid") for f in evidence.facts if f.kind in ("torchrun_signal", "torchrun_failed")} - {None}
    whole = [fact for fact in lists if 0 < len(fact.fields["ranks"]) == len(fact.fields["pids"])]
    return whole[0] if len(lists) == 1 and whole and ended and ended <= {*whole[0].fields["pids"]} else None


def _exited_unlisted(evidence: Evidence, endings: Mapping[int, Ending], present: Collection[int]) -> list[Ending]:
    """Return the end, with exit code 0, of a peer that the ranks in torchrun's list lost and that is none of them.

    The addresses of the lost connections must be those of its node, as another node's processes are in no such list.
    A rank that was stopped may have closed its connections before, so the peer must then be known to be another one.
    """
    peers = [str(fact.fields.get("peer")) for fact in evidence.facts if fact.kind in _CLOSED_FACTS]
    whole = _whole_list(evidence) if peers and all(map(_LOOPBACK.match, peers)) else None
    if whole is None or not peer_vanished(evidence, endings) or endings.keys() != {*whole.fields["ranks"]}:
        return []
    kinds, others = {end.kind for end in endings.values()}, {*present} - endings.keys()
    if kinds - {"lost_peer", "stopped"} or not (others or kinds == {"lost_peer"}):
        return []
    rank = others.pop() if len(others) == 1 else UNNAMED
    return [ends.of_line(whole, rank, "exited", quoted="", exit_code=0, unlisted=True)]
