"""The state of a job from its files: which rank waits where, how each rank ended, whether the job is stalled."""

from collections.abc import Mapping
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.histories.printed import add_printed
from diagnostics.analysis.histories.read import Reading, read
from diagnostics.analysis.histories.watchdog_lines import is_after, stamp_s
from diagnostics.analysis.observations import observations
from diagnostics.analysis.wait_graph import graph
from diagnostics.analysis.wait_graph.graph import Operation, WaitGraph
from diagnostics.contract.findings import Cost
from diagnostics.evidence.calls import Call
from diagnostics.evidence.endings import Ending, kind_of_exception, tells_of_others
from diagnostics.evidence.job import rank_endings
from diagnostics.evidence.logs.patterns import ZONE_S
from diagnostics.evidence.model import Evidence, Frame, LogFact, Stacks, Thread
from diagnostics.evidence.readers import watch
from diagnostics.evidence.stacks.dumps import is_users, main_thread

STALL_S = 10.0  # A call that has waited for less is not a hang if the run continues.
_FOLLOWS_S = 5.0  # Clocks of nodes differ by less, and torchrun needs less to notice what fails at one moment.
_SAME_ZONE_S = 3600.0  # A call waits for less, as the default timeouts are 10 and 30 minutes; more is another zone.
_TIMEOUTS = {"watchdog_timeout", "gloo_timeout", "monitored_barrier", "monitor_stuck"}
SIZES = "gloo_mismatch"  # Lines with which gloo ends a process.
HANG_FACTS = _TIMEOUTS | {"desync_report", SIZES, "collective_mismatch_text", watch.VERDICT}
_ENDED_BADLY = {"failed", "hung", "oom"}


class JobState(Struct):
    """State of a job that the causes of hangs share."""

    evidence: Evidence
    reading: Reading
    waits: WaitGraph
    endings: dict[int, Ending]
    """How each rank ended; a rank that ended after the job had stalled is considered a victim."""
    after_stall: dict[int, Ending] = field(default_factory=dict)
    """Recorded endings of ranks that ended only after waiting: effects of whatever they waited for."""

    @property
    def survey(self) -> Survey:
        """The calls of all ranks."""
        return self.reading.survey

    @property
    def state(self) -> str:
        """State of a dtk run; empty for other jobs."""
        return self.evidence.run.state if self.evidence.run is not None else ""

    def finished(self) -> bool:
        """Return whether the run, or the command under `dtk watch`, finished successfully, so that nothing hung."""
        return watch.finished(self.evidence)

    def stands_still(self) -> bool:
        """Return whether pending calls mean that the job is stuck rather than in progress."""
        if self.finished():
            return False
        if self.state in _ENDED_BADLY or any(fact.kind in HANG_FACTS for fact in self.evidence.facts) or self.gave_up():
            return True
        if self.survey.taken_earlier:
            return False
        # A dump may also have been requested from a job that continues: its calls are then young when it is written.
        if any(record.stuck_dump for record in self.survey.ranks.values()) and self.state != "running":
            return not 0 < self.waited_s() < STALL_S
        observed = observations(self.evidence).values()
        return self.waited_s() >= STALL_S or (bool(observed) and all(rank.blocked_s >= STALL_S for rank in observed))

    def ended(self) -> bool:
        """Return whether the job is over, as its status, its launcher or the ends of all ranks say."""
        is_listed = any(fact.kind in {"torchrun_list", "job_stopped"} for fact in self.evidence.facts)
        return self.state not in ("", "running") or is_listed or self.endings.keys() >= {*range(self.world() or 1)}

    def gave_up(self) -> bool:
        """Return whether a watchdog of the job's own dumped the stacks of all ranks and ended all in the same way.

        Where ranks left several dumps, these are taken regularly, and show no end.
        """
        ranks, dumped = [*range(self.world())], sorted(str(stacks.rank) for stacks in self.evidence.stacks)
        codes = {end.only_exit_code and end.exit_code for end in self.endings.values()}
        alike = len(codes) == 1 < len(ranks) and False not in codes and {*self.endings} >= {*ranks}
        return alike and dumped == sorted(map(str, ranks))

    def hangs(self) -> bool:
        """Return whether the ranks of one job wait for good."""
        return not self.evidence.doubt and self.stands_still()

    def now_s(self) -> float | None:
        """Return the latest time recorded in any file, in seconds since 1970; None if there is none."""
        times = [record.time_s for record in self.survey.ranks.values() if record.time_s]
        true_s = self.survey.clocks.true_s
        times += [true_s(rank, end.time_s) for rank, end in self.endings.items() if end.time_s]
        times += [fact.time_s for fact in self.evidence.facts if fact.kind == watch.VERDICT and fact.time_s]
        run = self.evidence.run
        if run is not None:
            times += [true_s(rank, beat.time_s) for rank, beat in run.heartbeats.items()]
        return max(times, default=None)

    def waited_s(self) -> float:
        """Return how long the oldest pending call had waited at the last file's time, in seconds; 0 if unknown."""
        now_s = self.now_s()
        began_s = min((call.created_s for call in self.waits.calls.values() if call.created_s), default=None)
        return max(0.0, now_s - began_s) if now_s is not None and began_s is not None else 0.0

    def size_mismatches(self) -> list[LogFact]:
        """Return the lines with which gloo ended processes as a message was longer than the one that they expected."""
        return [fact for fact in self.evidence.facts if fact.kind == SIZES]

    def met_sizes(self) -> set[int]:
        """Return the ranks that gloo ended, as far as known: a line of some process says so of one."""
        aborted = {rank for rank, end in self.endings.items() if end.kind == "aborted"}
        return aborted if aborted and self.size_mismatches() else set()

    def cost(self) -> Cost | None:
        """Return the time lost by blocked ranks; None if the recorded times do not show it."""
        waited_s = round(self.waited_s(), 1)
        return Cost(waited_s, "s blocked") if waited_s > 0 else None

    def world(self) -> int:
        """Return the number of ranks in the job: at least as many as any file mentions."""
        evidence = self.evidence
        if evidence.world_size:
            return evidence.world_size
        ranks = [*self.endings, *evidence.launched]
        ranks += [fact.rank for fact in evidence.facts if fact.rank is not None]
        ranks += [stack.rank for stack in evidence.stacks if stack.rank is not None]
        return max(self.survey.world(), max(ranks, default=-1) + 1)

    def waits_first_in(self, rank: int, operation: Operation) -> bool:
        """Return whether no older call of the rank is incomplete, which would hold this one back on its device."""
        oldest, call = self.survey.ranks[rank].pending()[0], self.waits.calls[rank, operation]
        # A send and a receive that are posted together have one position.
        return (oldest.key, oldest.seq, not oldest.p2p) == (call.key, call.seq, not call.p2p)

    def any_calls(self) -> bool:
        """Return whether the record of any rank contains a call."""
        records = self.survey.ranks.values()
        return any(record.p2p or any(line.issued for line in record.lines.values()) for record in records)

    def latest_stacks(self) -> dict[int, Stacks]:
        """Return the last stack of each rank: of its dump, else of the line at which an interrupt (Ctrl-C) ended it."""
        ends = (end for end in self.endings.values() if end.kind == "stopped" and end.frames)
        stacks = {
            end.rank: Stacks(end.rank, end.file, (Thread("", end.frames, main=True),), end.time_s) for end in ends
        }
        return stacks | {stacks.rank: stacks for stacks in self.evidence.stacks if stacks.rank is not None}

    def path(self, rank: int, call: Call) -> tuple[Frame, ...]:
        """Return the stack of a pending call with the main thread's frames as its callers, also of another thread's."""
        frames, users = [*map(short, call.stack)], user_frames(self.latest_stacks().get(rank))
        functions, root = [(at.file, at.function) for at in users], frames and (frames[-1].file, frames[-1].function)
        return (*frames, *users[functions.index(root) + 1 if root in functions else 0 :])

    def step_of(self, rank: int) -> int | None:
        """Return the last step of a rank found in any record; None if there is none."""
        record = self.survey.ranks.get(rank)
        steps = [line.last.step for line in record.lines.values() if line.last is not None] if record else []
        run = self.evidence.run
        beat = run.heartbeats.get(rank) if run is not None else None
        return max((step for step in (*steps, beat.step if beat else None) if step is not None), default=None)

    def behind(self) -> list[int]:
        """Return the ranks whose records end before their group's; empty if the run continues or all were killed."""
        if self.state in ("running", "lost"):
            return []
        ranks = set()
        for table in self.survey.groups.values():
            most = max((line.issued for line in table.lines.values()), default=0)
            ranks |= {rank for rank, line in table.lines.items() if line.issued < most}
        return sorted(ranks)

    def peer_vanished(self) -> bool:
        """Return whether a connection broke although nothing timed out: some process ended before all others."""
        return rank_endings.peer_vanished(self.evidence, self.endings)

    def without_ending(self) -> list[int]:
        """Return the ranks without a recorded ending, if connections broke or records end at different positions."""
        broken = self.peer_vanished() or bool(self.behind())
        return [rank for rank in range(self.world()) if rank not in self.endings] if broken else []

    def may_be_unrecorded(self, rank: int) -> bool:
        """Return whether the rank may be in a call that gloo does not record: send, recv, monitored_barrier."""
        recorders = self.survey.ranks[rank].recorders if rank in self.survey.ranks else set()
        return "gloo" in recorders and SNAPSHOTS not in recorders


def short(frame: Frame) -> Frame:
    """Return the frame without the names around its function's, which not all recorders note."""
    return replace(frame, function=frame.function.rpartition(".")[2])


def user_frames(dump: Stacks | None) -> tuple[Frame, ...]:
    """Return the user's frames of a rank's main thread, innermost first, their functions' names `short`."""
    thread = main_thread(dump) if dump is not None else None
    return tuple(short(frame) for frame in thread.frames if is_users(frame)) if thread is not None else ()


def build(evidence: Evidence) -> JobState:
    """Read all dumps and rings, build the wait-for graph, and classify how the ranks ended.

    Files that cannot be read become problems of the evidence.
    """
    reading = read(evidence)
    add_printed(evidence, reading)
    evidence.problems += [problem for problem in reading.problems if problem not in evidence.problems]
    # An aborting process leaves no dump, and its message no rank if several aborted.
    waits = graph.build(reading.survey, {fact.rank for fact in evidence.facts if fact.kind == SIZES})
    world = evidence.world_size or reading.survey.world()
    not_waiting = [rank for rank in range(world) if rank not in waits.of_rank]
    endings = rank_endings.add_unnamed(evidence, rank_endings.rank_endings(evidence), not_waiting)
    hang = any(fact.kind in HANG_FACTS for fact in evidence.facts)
    unlinked = any(fact.kind == "nccl_ib_error" or "failed" in fact.fields for fact in evidence.facts)
    others_wait = bool(waits.of_rank or evidence.stacks) or hang or unlinked
    job = JobState(
        evidence, reading, waits, rank_endings.settle_exit_codes(endings, others_wait, _awaited(reading.survey, waits))
    )
    job.endings |= _raised_before_timeouts(job)
    early = {rank: end for rank, end in job.endings.items() if end.exited_early}
    # The message of an exception; the launcher's words on an exit may name the process.
    ways = {rank: (end.exit_code, end.signal, end.type, end.type and end.message) for rank, end in early.items()}
    alike = len(ways) == job.world() > 1 and len({*ways.values()}) == 1
    late = {rank: end for rank, end in early.items() if _waited_before(job, rank, end, alike)}
    late |= rank_endings.after_timeout(evidence, job.endings) | (early if job.gave_up() else {})
    # Whatever ends a rank no earlier than another one gave up is later than the wait: torchrun, for one, sends SIGKILL
    # 30 s after the first failure to ranks that its SIGTERM did not end. Memory that ran out has a record of its own.
    true_s = job.survey.clocks.true_s
    ended_s = {rank: true_s(rank, end.time_s) for rank, end in job.endings.items() if end.time_s is not None}
    gave_up = [at for rank, at in ended_s.items() if rank in late or job.endings[rank].kind == "timed_out"]
    gave_up_s = min(gave_up, default=inf)
    late |= {rank: end for rank, end in early.items() if end.kind != "oom" and ended_s.get(rank, -inf) >= gave_up_s}
    # The watch ends the ranks after its verdict, so others lose their peers. The zone of a log's times is not known.
    stopped_s = watch.verdict_s(evidence)
    late |= {rank: end for rank, end in early.items() if not end.line and ended_s.get(rank, -inf) >= stopped_s}
    late |= _after_another(early, job.endings) | {rank: early[rank] for rank in tells_of_others(early)}
    # A rank that had reported one is in `late` already.
    stamps = (stamp_s(fact) for fact in evidence.facts if fact.kind == "watchdog_timeout")
    first = min((at for at in stamps if at is not None), default=inf)
    dated = {rank: end.after_s for rank, end in early.items() if end.after_s is not None and end.kind != "oom"}
    late |= {rank: early[rank] for rank, after_s in dated.items() if is_after(after_s, first)}
    # A job's own watchdog ends all ranks in the same way, so one such end identifies the others. The kernel kills some.
    own = {rank for rank, end in early.items() if end.only_exit_code or (end.kind == "raised" and end.type) or alike}
    after = {ways[rank] for rank in late if rank in own}
    job.after_stall = late | {rank: end for rank, end in early.items() if rank in own and ways[rank] in after}
    job.endings |= {rank: replace(end, kind="timed_out") for rank, end in job.after_stall.items()}
    return job


def _raised_before_timeouts(job: JobState) -> dict[int, Ending]:
    """Return exceptions above all timeouts of watchdogs in a log, without the time at which their process ended.

    A process may end long after it raised, such as when a thread of it still waits.
    """
    first: dict[str, int] = {}
    for fact in job.evidence.facts:
        if fact.kind == "watchdog_timeout":
            first[fact.file] = min(fact.line, first.get(fact.file, fact.line))
    raised = {rank: end for rank, end in job.endings.items() if end.type and end.line and rank not in job.waits.of_rank}
    above = {rank: end for rank, end in raised.items() if end.line < first.get(end.file, 0)}
    own_s = {rank: None if end.after_s == end.time_s else end.after_s for rank, end in above.items()}
    return {rank: replace(end, time_s=None, after_s=own_s[rank]) for rank, end in above.items()}


def _awaited(survey: Survey, waits: WaitGraph) -> set[int]:
    """Return the ranks that others wait for and that were in no call which could have failed because of a peer.

    Nothing is pending on them, and no peer has yet to make a call that they made, by dtk's rings: gloo marks failed
    calls as completed.
    """
    awaited = waits.waited_for() - waits.of_rank.keys()
    for table in (table for key, table in survey.groups.items() if key.recorder == SNAPSHOTS):
        least = min((line.issued for line in table.lines.values()), default=0)
        awaited -= {rank for rank, line in table.lines.items() if line.issued > least}
    records = ((rank, survey.ranks[rank]) for rank in awaited & survey.ranks.keys())
    return {rank for rank, own in records if SNAPSHOTS in own.recorders and not (own.last and own.last.p2p)}


def _after_another(early: Mapping[int, Ending], endings: Mapping[int, Ending]) -> dict[int, Ending]:
    """Return the endings that came after that of another rank: a launcher then ends the rest, by SIGKILL at last.

    Those that logs date are compared by time; a kill without a date by its line, as launchers report it at once.
    """
    failed = [*early.values(), *(end for end in endings.values() if end.kind == "failed")]
    before = (end.before_s for end in failed if end.before_s is not None and end.before_s >= (end.after_s or 0))
    first_s = min(before, default=inf)  # What a program prints may be written late.
    raised: dict[str, int] = {}
    for end in (end for end in early.values() if end.type and end.line):
        raised[end.file] = min(end.line, raised.get(end.file, end.line))

    def is_later(end: Ending) -> bool:
        if end.after_s is not None:
            return end.after_s - first_s >= _FOLLOWS_S
        return end.signal == "SIGKILL" and not end.type and raised.get(end.file, end.line) < end.line

    return {rank: end for rank, end in early.items() if is_later(end)}


def _waited_before(job: JobState, rank: int, end: Ending, alike: bool = False) -> bool:
    """Return whether a rank had waited for `STALL_S`, or others for yet another rank, when it ended."""
    calls = [job.waits.calls[rank, operation] for operation in job.waits.of_rank.get(rank, [])]
    is_common = bool(calls) and not (job.waits.blockers(rank) or alike)
    may_be_why = is_common and (end.kind == "oom" or end.of_device)  # Why the call hangs.
    there = job.survey.ranks.keys() - job.waits.of_rank.keys()
    for operation, absent in job.waits.absent.items() if not calls else ():
        if (missing := there & {*absent}) and rank not in missing:
            calls += [job.waits.calls[waiting, operation] for waiting in job.waits.waiting[operation]]
    began_s = min((call.created_s for call in calls if call.created_s), default=None)
    if began_s is None or may_be_why:
        return False
    alone = any({*ranks} == {rank} for ranks in job.waits.absent.values())
    untimed = alone and bool(end.type) and end.time_s is None
    at, errors = end.record, (error for error in job.evidence.errors if error.rank == end.rank)
    later = (e for e in errors if not e.line or (e.file == at.file and e.line > (at.line or 0)))  # A file has the end.
    if untimed and any(kind_of_exception(e.type, e.message, e.frames) == "timed_out" for e in later):
        return False  # It caught this exception and left calls out; its own wait came later and ended by its timeout.
    waited_s = _waited_s(job, end, began_s)
    stuck_dump = rank in job.survey.ranks and job.survey.ranks[rank].stuck_dump
    return end.only_exit_code and stuck_dump if waited_s is None else waited_s >= STALL_S


def _waited_s(job: JobState, end: Ending, began_s: float) -> float | None:
    """Return for how long, at least, a call had been pending when a rank ended; None if unknown.

    A log's clock is off by its zone, which is known as the call began soon after the last printed step. Without steps
    only the time of the end itself counts, which is not before the call; zones are hours and quarters of them.
    """
    stepped_s = max((fact.fields["times"][1] for fact in job.evidence.facts if fact.fields.get("times")), default=0.0)
    if end.after_s is not None and stepped_s and (end.line or end.time_s is None):
        return end.after_s - stepped_s - ((began_s - stepped_s + _FOLLOWS_S) % ZONE_S - _FOLLOWS_S)
    record = job.survey.ranks.get(end.rank)
    at_s = end.time_s or (record.time_s if record is not None else None)
    if at_s is None:
        return None
    waited_s = job.survey.clocks.true_s(end.rank, at_s) - began_s
    return waited_s % ZONE_S if end.time_s and end.line and not 0 <= waited_s < _SAME_ZONE_S else waited_s
