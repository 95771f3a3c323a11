"""What all hang detectors look at: the survey, the wait-for graph, who ended how, and whether anything hangs at all.

Decides no cause.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.one_rank import SNAPSHOTS
from diagnostics.analysis.histories.read import Reading
from diagnostics.contract.findings import Cost
from diagnostics.detectors.hang.waiting.waits import Waits
from diagnostics.evidence import watch_files
from diagnostics.evidence.calls import Call
from diagnostics.evidence.endings import Ending
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.rank_endings import add_unnamed, peer_vanished, rank_endings, settle_exit_codes

STALL_S = 10.0
"""In a run that still goes on, a call that waits for less is no hang."""
_HANG_FACTS = {
    "watchdog_timeout",
    "gloo_timeout",
    "desync_report",
    "monitored_barrier",
    "monitor_stuck",
    "gloo_mismatch",
    watch_files.VERDICT,
}
_ENDED_BADLY = {"failed", "hung", "oom"}


@dataclass(slots=True)
class Context:
    """One value that the causes share."""

    evidence: Evidence
    reading: Reading
    waits: Waits
    ends: dict[int, Ending]
    blamed: set[int] = field(default_factory=set)
    """Ranks that a mismatch was pinned on; what they and their groups do afterwards follows from it."""
    settled: set[int] = field(default_factory=set)
    """Ranks whose waiting a mismatch explains."""
    siblings: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Causes that the first divergence is not: why, and what was measured."""

    @property
    def survey(self) -> Survey:
        """All ranks' calls."""
        return self.reading.survey

    @property
    def state(self) -> str:
        """`status.json`'s state of a dtk run; empty for others."""
        run = self.evidence.run
        return run.status.state if run is not None and run.status is not None else ""

    def finished(self) -> bool:
        """The run, or the command under `dtk watch`, ended in order: nothing hung."""
        return self.state == "finished" or watch_files.ended_well(self.evidence)

    def told_victims(self) -> set[int]:
        """Ranks of a dtk run that ended because of the first that failed, as its launcher says."""
        status = self.evidence.run.status if self.evidence.run is not None else None
        victims = status.failure.victims if status is not None and status.failure is not None else []
        return {one for one in victims if isinstance(one, int)} if isinstance(victims, list) else set()

    def stands(self) -> bool:
        """Whether pending calls mean that something is stuck rather than under way."""
        if self.finished():
            return False
        if self.state in _ENDED_BADLY or any(fact.kind in _HANG_FACTS for fact in self.evidence.facts):
            return True
        if any(record.stuck_dump for record in self.survey.ranks.values()) and self.state != "running":
            return True
        return self.waited_s() >= STALL_S

    def now_s(self) -> float | None:
        """The last moment that any file tells of."""
        times = [record.time_s for record in self.survey.ranks.values() if record.time_s]
        true_s = self.survey.clocks.true_s
        times += [true_s(rank, end.time_s) for rank, end in self.ends.items() if end.time_s]
        times += [one.time_s for one in self.evidence.facts if one.kind == watch_files.VERDICT and one.time_s]
        run = self.evidence.run
        if run is not None:
            times += [true_s(rank, beat.time_s) for rank, beat in run.heartbeats.items()]
        return max(times, default=None)

    def waited_s(self, calls: Iterable[Call] | None = None) -> float:
        """Seconds that the oldest of the pending calls had waited when the last file was written; 0 if unknown."""
        now_s = self.now_s()
        found = self.waits.calls.values() if calls is None else calls
        began = min((call.created_s for call in found if call.created_s), default=None)
        return max(0.0, now_s - began) if now_s is not None and began is not None else 0.0

    def cost(self, calls: Iterable[Call] | None = None) -> Cost | None:
        """Seconds blocked, where the times allow it."""
        waited_s = round(self.waited_s(calls), 1)
        return Cost(waited_s, "s blocked") if waited_s > 0 else None

    def world(self) -> int:
        """Ranks of the job, at least as many as any file tells of."""
        evidence = self.evidence
        if evidence.world_size:
            return evidence.world_size
        told = [*self.ends, *evidence.launched]
        told += [one.rank for one in evidence.facts if one.rank is not None]
        told += [one.rank for one in evidence.stacks if one.rank is not None]
        return max(self.survey.world(), max(told, default=-1) + 1)

    def pending_ranks(self) -> list[int]:
        """Ranks with a call that did not complete."""
        return sorted(self.waits.of_rank)

    def step_of(self, rank: int) -> int | None:
        """The last step that anything tells of for a rank."""
        record = self.survey.ranks.get(rank)
        steps = [line.last.step for line in record.lines.values() if line.last is not None] if record else []
        run = self.evidence.run
        beat = run.heartbeats.get(rank) if run is not None else None
        return max((step for step in (*steps, beat.step if beat else None) if step is not None), default=None)

    def region_of(self, rank: int) -> str:
        """The region of dtk's loop that a rank of a dtk run was in last; empty where none was marked."""
        run = self.evidence.run
        beat = run.heartbeats.get(rank) if run is not None else None
        return beat.region or "" if beat is not None else ""

    def apart(self) -> list[int]:
        """Ranks whose rings end before those of others in the same group; none while the run goes on."""
        if self.state == "running":
            return []
        behind = set()
        for key, table in self.survey.groups.items():
            issued = {rank: line.issued for rank, line in table.lines.items()}
            if key.recorder == SNAPSHOTS and len(set(issued.values())) > 1:
                behind |= {rank for rank, count in issued.items() if count < max(issued.values())}
        return sorted(behind)

    def without_end(self) -> list[int]:
        """Ranks of which nothing says how they ended, in a job that did not end well or whose ranks stand apart."""
        broken = peer_vanished(self.evidence, self.ends) or bool(self.apart())
        return [rank for rank in range(self.world()) if rank not in self.ends] if broken else []

    def silent(self, rank: int) -> bool:
        """No dump of this rank."""
        return rank not in self.survey.ranks

    def unrecorded_possible(self, rank: int) -> bool:
        """Whether this rank may sit in a call that gloo's recorder leaves out: send, recv, monitored_barrier."""
        recorders = self.survey.ranks[rank].recorders if rank in self.survey.ranks else set()
        return "gloo" in recorders and SNAPSHOTS not in recorders


def make(evidence: Evidence, reading: Reading, waits: Waits) -> Context:
    """Collect it."""
    found = add_unnamed(evidence, rank_endings(evidence), _not_waiting(evidence, reading, waits))
    hang = any(fact.kind in _HANG_FACTS for fact in evidence.facts)
    others = bool(waits.of_rank) or bool(evidence.stacks) or hang
    return Context(evidence, reading, waits, settle_exit_codes(found, others))


def _not_waiting(evidence: Evidence, reading: Reading, waits: Waits) -> list[int]:
    """Ranks of the job that an exception can be of: all, less those that wait in a call."""
    world = evidence.world_size or reading.survey.world()
    return [rank for rank in range(world) if rank not in waits.of_rank]
