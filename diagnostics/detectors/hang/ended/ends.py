"""How each rank ended, from exceptions, signals, exit codes and logs: by itself, or because a peer was gone.

An error of the communication library that speaks of the other side is never a beginning. Decides no cause.
"""

import re
from dataclasses import dataclass, replace

from diagnostics.contract.artifacts import ENDED_BY_WATCH
from diagnostics.contract.findings import EvidenceItem
from diagnostics.detectors.hang.ended import srun
from diagnostics.detectors.hang.ended.srun import Manner
from diagnostics.evidence.model import Evidence, Frame, LogFact, RankError, shortened

_LIBRARY_ERRORS = {
    "RuntimeError",
    "DistBackendError",
    "DistNetworkError",
    "DistError",
    "DistStoreError",
    "ConnectionError",
}
_LOST_PEER = re.compile(
    r"clos(?:ed|ing)|reset by peer|broken pipe|timed? ?out|timeout|peer|remote process|rank \d+ (?:failed|is)|"
    r"ncclRemoteError|unhandled (?:system|cuda) error|aborted|gloo|preamble|mismatch|connect|Socket",
    re.IGNORECASE,
)
_OOM = re.compile(r"out of memory|OutOfMemory|can't allocate memory|not enough memory|bad_alloc|Cannot allocate", re.I)
_OOM_FACTS = {"cuda_oom", "cpu_oom"}
_MISMATCH = re.compile(r"preamble\.length|op\.nbytes|mismatch between collectives|Detected mismatch", re.I)
_OWN_CHECK = re.compile(r"\[enforce fail at [^\]]*?gloo/(\w+\.cc:\d+)\] ?(?!op\.)([^\n]*?)[. ]*(?:\n|$)")
"""What a collective of gloo says of the arguments that this very rank gave; of peers its `transport/` speaks."""
_UNREDUCED = re.compile(r"Expected to have finished reduction in the prior iteration")
"""DDP's words when it is called again before all gradients were ready."""
_FIRST: dict[str, int] = {
    "oom": 0,
    "raised": 1,
    "killed": 2,
    "exited": 3,
    "unreduced": 4,
    "aborted": 5,
    "lost_peer": 6,
    "failed": 7,
}
_IN_ORDER = "exit code 0"
_LONG = 120
"""Characters of a message from which on one sentence of it is told."""
_CLOSED = re.compile(r"closed by peer|reset by peer|closed by remote|broken pipe", re.IGNORECASE)
_CLOSED_FACTS = {"gloo_closed", "gloo_reset"}
_TIMEOUT_FACTS = {"gloo_timeout", "watchdog_timeout", "monitored_barrier", "store_timeout"}
UNNAMED = -1
"""Rank of an end that no file ties to a rank."""
_LAUNCHER_SIGNALS = {"SIGTERM", "SIGINT", "SIGHUP"}


@dataclass(frozen=True, slots=True)
class End:
    """The end of one rank."""

    rank: int
    manner: Manner
    what: str
    """`ValueError: bad batch`, `SIGKILL`, `exit code 0`."""
    frames: tuple[Frame, ...]
    time_s: float | None
    step: int | None
    region: str | None
    evidence: EvidenceItem

    @property
    def by_itself(self) -> bool:
        """Whether the rank went first rather than after a peer."""
        return self.manner in {"raised", "oom", "killed", "exited"}

    @property
    def gone(self) -> bool:
        """Whether the rank left its work: not when the launcher ended it, or when it gave up on a peer."""
        return self.by_itself or self.manner in {"aborted", "unreduced"}

    @property
    def in_order(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.manner == "exited" and self.what == _IN_ORDER

    @property
    def wordless(self) -> bool:
        """Whether only an exit code tells of its failure."""
        return self.what.startswith("exit code") and self.what != _IN_ORDER


def ends(evidence: Evidence) -> dict[int, End]:
    """Rank -> how it ended: the most telling of what its files say."""
    found: dict[int, list[End]] = {}
    for error in evidence.errors:
        if error.rank is not None and error.rank >= 0 and not _is_note(error):
            found.setdefault(error.rank, []).append(_of_error(error, error.rank))
    for fact in evidence.facts:
        if fact.rank is not None and (fact.kind in _OOM_FACTS or _device_full(fact)):
            found.setdefault(fact.rank, []).append(_of_fact(fact, fact.rank))
    _add_exits(evidence, found)
    for rank, how, what, item in srun.ends(evidence):
        found.setdefault(rank, []).append(End(rank, how, what, (), None, None, None, item))
    _add_unlisted(evidence, found)
    _add_interrupted(evidence, found)
    return {
        rank: min(all_ends, key=lambda end: (_FIRST[end.manner], not end.frames, end.what, end.evidence.file))
        for rank, all_ends in found.items()
    }


def settle_alone(found: dict[int, End], others: bool) -> dict[int, End]:
    """A lone exit code of 1 is the beginning; beside waiters (`others`) or other ends it may be that of a victim."""
    if others or len(found) != 1:
        return found
    return {rank: replace(end, manner="raised") if end.manner == "failed" else end for rank, end in found.items()}


def add_unnamed(evidence: Evidence, found: dict[int, End], candidates: list[int]) -> dict[int, End]:
    """The one exception that a log tells of without a rank, where no rank is known to have gone by itself.

    Args:
        evidence: with all errors.
        found: ends of known ranks.
        candidates: ranks that it may be of; a single one is named.
    """
    if any(end.by_itself for end in found.values()):
        return found
    rank = candidates[0] if len(candidates) == 1 else UNNAMED
    own = [_of_error(error, rank) for error in evidence.errors if error.rank is None and error.type]
    first = [end for end in own if end.by_itself]
    return {**found, rank: first[0]} if len(first) == 1 else found


def _device_full(fact: LogFact) -> bool:
    """A CUDA call outside torch's allocator, as NCCL's, found no memory."""
    return fact.kind == "cuda_error" and "out of memory" in str(fact.fields.get("error"))


def _is_note(error: RankError) -> bool:
    """The watch's or the launcher's words about a rank that did not end by itself."""
    if error.exit_code == ENDED_BY_WATCH and not error.type:
        return True
    return not (error.type or error.signal or error.exit_code is not None or "without a word" in error.message)


def _of_error(error: RankError, rank: int) -> End:
    text = f"{error.type}: {error.message}"
    first = error.message.partition(" (then ")[0]  # What clearing up ran into afterwards says nothing about it.
    if error.type:
        manner: Manner = "raised"
        if _OOM.search(text):
            manner = "oom"
        elif _UNREDUCED.search(error.message):
            manner = "unreduced"
        elif error.type == "KeyboardInterrupt":
            manner = "lost_peer"  # As SIGINT: someone stopped the job.
        elif _OWN_CHECK.search(first):
            pass
        elif error.type.rpartition(".")[2] in _LIBRARY_ERRORS and _LOST_PEER.search(first):
            manner = "lost_peer"
        what = _telling_line(error) if manner == "oom" else _first_line(error)
    elif error.signal is not None or (error.exit_code or 0) < 0:
        name = error.signal or f"signal {-(error.exit_code or 0)}"
        manner = "aborted" if name == "SIGABRT" else "lost_peer" if name in _LAUNCHER_SIGNALS else "killed"
        what = name
    elif error.exit_code is None:
        manner, what = "killed", "gone without a word"
    else:
        manner = "exited"
        what = f"exit code {error.exit_code}"
        if error.exit_code:
            manner = "failed" if error.exit_code == 1 else "exited"
    who = f"rank {rank}: " if rank != UNNAMED else ""
    item = EvidenceItem("error", error.file, who + what, error.line or None)
    return End(rank, manner, what, error.frames, error.time_s, error.step, error.region, item)


def _telling_line(error: RankError) -> str:
    """As `_first_line`, of what says that memory ran out: NCCL puts it in the last line, c10 behind its own check."""
    if _OOM.search(error.type):
        return _first_line(error)
    line = next((line for line in error.message.splitlines() if _OOM.search(line)), error.message)
    if len(line) > _LONG:
        line = next((part for part in re.split(r"(?<=\.) ", line) if _OOM.search(part)), line)
    return _first_line(replace(error, message=line))


def _first_line(error: RankError) -> str:
    """Class and the first line of the message, cut at its first sentence where it is long."""
    line = " ".join(error.message.strip().partition("\n")[0].split())
    if own := _OWN_CHECK.match(line):
        line = f"gloo/{own[1]}: {own[2]} does not hold"
    if len(line) > _LONG:
        line = line.partition(". ")[0]
    return f"{error.type}: {shortened(line, 200)}" if line else error.type


def _of_fact(fact: LogFact, rank: int) -> End:
    item = EvidenceItem("log", fact.file, shortened(fact.text, 200), fact.line)
    return End(rank, "oom", shortened(fact.text, 200), (), fact.time_s, None, None, item)


def _add_exits(evidence: Evidence, found: dict[int, list[End]]) -> None:
    """Dtk's runs: ranks that said goodbye while others went on, and the rank that the launcher saw fail first."""
    run = evidence.run
    if run is None or run.status is None:
        return
    for rank, events in run.events.items():
        last = events[-1] if events else {}
        unknown = all(end.what == "gone without a word" for end in found.get(rank, []))
        if last.get("name") == "end" and last.get("exit_code") == 0 and unknown:
            item = EvidenceItem("log", f"events/rank_{rank:05d}.jsonl", f"rank {rank}: ended with exit code 0")
            time_s = last.get("time_s")
            found[rank] = [
                End(rank, "exited", "exit code 0", (), time_s if isinstance(time_s, float) else None, None, None, item)
            ]
    failure = run.status.failure
    told = run.status.state != "hung"  # There the reason is the watch's own words about a rank that was alive.
    vague = failure is not None and all(end.manner == "failed" for end in found.get(failure.rank, []))
    if failure is not None and told and vague and failure.reason:
        item = EvidenceItem("error", "status.json", f"rank {failure.rank}: {failure.reason}")
        killed = re.match(r"killed by (SIG\w+)", failure.reason)
        manner: Manner = "raised"
        if _OOM.search(failure.reason):
            manner = "oom"
        elif _UNREDUCED.search(failure.reason):
            manner = "unreduced"
        elif killed or "without a word" in failure.reason:
            manner = "aborted" if killed and killed[1] == "SIGABRT" else "killed"
        elif failure.exit_code == 0:
            manner = "exited"
        elif _LOST_PEER.search(failure.reason) and failure.reason.partition(":")[0] in _LIBRARY_ERRORS:
            manner = "lost_peer"
        elif re.fullmatch(r"exit code -?\d+", failure.reason):
            manner = "failed" if failure.reason == "exit code 1" else "exited"
        what = killed[1] if killed else failure.reason
        found[failure.rank] = [End(failure.rank, manner, what, (), None, failure.step, failure.region, item)]


def _add_unlisted(evidence: Evidence, found: dict[int, list[End]]) -> None:
    """Ranks that torchrun neither saw fail nor had to stop, where it names all others: they had ended with exit code 0.

    It tells one node's processes, and in older versions not all: so those that it stopped must be in its list.
    """
    lists = [fact for fact in evidence.facts if fact.kind == "torchrun_list"]
    stopped = [fact for fact in evidence.facts if fact.kind in ("torchrun_signal", "torchrun_failed")]
    first = [min(several, key=lambda end: _FIRST[end.manner]) for several in found.values()]
    if len(lists) != 1 or not stopped or any(end.by_itself or end.manner == "failed" for end in first):
        return
    ranks, pids = lists[0].fields["ranks"], lists[0].fields["pids"]
    if not ranks or len(ranks) != len(pids) or not {fact.fields.get("pid") for fact in stopped} <= set(pids):
        return
    launched = evidence.launched or {*range(min(ranks), max(ranks) + 1), *_beside(evidence, ranks)}
    for rank in sorted(set(launched) - set(ranks) - set(found)):
        what = (
            f"rank {rank}: not among the processes that failed or had to be stopped, so it had ended with exit code 0"
        )
        item = EvidenceItem("log", lists[0].file, what, lists[0].line)
        found[rank] = [End(rank, "exited", "exit code 0", (), None, None, None, item)]


def _add_interrupted(evidence: Evidence, found: dict[int, list[End]]) -> None:
    """Ranks that got a SIGINT of their own: after one to all of them torchrun ends without a list of failures."""
    listed = {rank for fact in evidence.facts if fact.kind == "torchrun_list" for rank in fact.fields["ranks"]}
    for rank in sorted(listed & set(found)):
        own = next((end for end in found[rank] if end.what == "SIGINT"), None)
        if own is not None:
            frames = next((end.frames for end in found[rank] if end.frames), ())
            found[rank].append(replace(own, manner="killed", frames=frames))


def _beside(evidence: Evidence, ranks: list[int]) -> set[int]:
    """Ranks whose rings say that they ran on the machine of the listed ones: the launcher had them as well."""
    hosts = {file.rank: file.host() for file in evidence.rings if file.rank is not None}
    known = {hosts[rank] for rank in ranks if hosts.get(rank)}
    return {rank for rank, host in hosts.items() if host in known} if len(known) == 1 else set()


def peer_gone(evidence: Evidence, found: dict[int, End]) -> bool:
    """Whether a connection broke while nobody timed out: some process went away, before all others."""
    if any(fact.kind in _TIMEOUT_FACTS for fact in evidence.facts):
        return False
    broken = any(end.manner == "lost_peer" and _CLOSED.search(end.what) for end in found.values())
    return broken or any(fact.kind in _CLOSED_FACTS for fact in evidence.facts)


def mismatch_facts(evidence: Evidence) -> list[LogFact]:
    """Lines in which gloo or torch itself says that sizes or operations did not fit."""
    return [fact for fact in evidence.facts if fact.kind == "gloo_mismatch" or _MISMATCH.search(fact.text)]
