"""Assigns log lines, stacks, errors and variables to ranks, local ones to global ones, and settles the world size."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside
from diagnostics.contract.formatting import counted, first_of
from diagnostics.evidence.endings import is_victim, kind_of_exception
from diagnostics.evidence.job.choose import ERRORS
from diagnostics.evidence.job.registry import files_of_ranks
from diagnostics.evidence.logs.nccl import CALLS
from diagnostics.evidence.model import MOST_RANKS, Evidence, LogFact, Owner, Problem, RankError, integer, rank_in_name
from diagnostics.evidence.reader import Contents
from diagnostics.evidence.stacks.dumps import of_helper

_FILLED = ("frames", "signal", "exit_code", "time_s", "after_s", "before_s", "step", "region")
"""Fields that the most complete record of an ending takes from the others if it has none."""
_SEVERAL = frozenset({"launcher_error", "several_processes", "several_nodes", "watchdog_timeout", "watchdog_abort",
                      "gloo_timeout", "monitored_barrier", "desync_report"})  # fmt: skip
"""Kinds of lines that show a second process: a launcher's, and those of ranks that waited for others."""
ALL_RANKS = -1  # Key of `Evidence.environment` for the variables of the whole job.
_VARIABLES = re.compile(r"^(?:NCCL|TORCH|GLOO|CUDA|PYTORCH|OMP|RCCL|HIP)[A-Z0-9_]*$")
_PARALLEL = patterns_beside(__file__)["parallel"]


def assign_ranks(evidence: Evidence, read: list[tuple[Contents, Owner]]) -> None:
    """Move records into the evidence, with local ranks and NCCL's processes mapped to global ranks."""
    newest = dict(sorted((of.node, of.attempt or 0) for _, of in read))  # The last of a node is its newest attempt.
    nodes = {of.node for _, of in read if of.local_rank is not None}
    single = len(nodes) <= 1 and _one_node([contents for contents, _ in read], bool(nodes or evidence.run))
    processes = _processes(read)

    def settled(stated: int | None, fact: LogFact | None = None) -> int | None:
        """Convert a recorded rank to the global one; negative values are local: -1 is local rank 0."""
        if stated is None and of.local_rank is not None:
            stated = -1 - of.local_rank
        if stated is None and fact is not None:
            return processes.get(str(fact.fields.get("process", "")))
        if stated is not None and stated < 0:
            return None if offset is None else -1 - stated + offset
        return stated

    for contents, of in read:
        if of.attempt is not None and of.attempt < newest[of.node]:
            continue
        # Global minus local rank: as torchrun lists it, or as the only command line says that places a node.
        offset, placed = contents.offset, [fact.fields for fact in contents.facts if "node_rank" in fact.fields]
        agents = {fact.fields.get("agent") for fact in contents.facts} - {None}
        if offset is None and len(placed) == len(agents) == 1:
            offset = int(placed[0]["node_rank"] * placed[0]["nproc"])
        offset = 0 if offset is None and single else offset
        named = {"steps": of.rank}  # Who printed steps; other lines of a file that names a rank may be a launcher's.
        own = ((fact, settled(fact.rank, fact)) for fact in contents.facts)
        evidence.facts += [replace(f, rank=named.get(f.kind) if rank is None else rank) for f, rank in own]
        for error in contents.errors:
            rank = settled(error.rank)
            local_rank = -1 - error.rank if rank is None and error.rank is not None else None
            evidence.errors.append(replace(error, rank=rank, local_rank=local_rank))
        evidence.stacks += [replace(dump, rank=settled(dump.rank)) for dump in contents.stacks]
        if others := contents.speak - {0}:
            evidence.facts.append(LogFact("several_processes", None, contents.file, fields={"nranks": max(others) + 1}))


def _one_node(reads: list[Contents], on_one_node: bool) -> bool:
    """Return whether `local_rank: 3` means global rank 3: the ranks begin at 0, and there is no second node.

    A launcher's line alone does not show it; `on_one_node` if the job's records are those of one node.
    """
    prefixed = [read for read in reads if read.local]
    kinds: list[list[Any]] = [[*read.facts, *read.errors, *read.stacks] for read in reads]
    speak = [own if len(own := read.speak) > 1 else set() for read in reads]  # One alone may be any node's.
    stated = [{each.rank for each in own} - {None} | ranks for own, ranks in zip(kinds, speak, strict=True)]
    named = {rank for ranks in stated for rank in ranks if rank >= 0}
    facts = [fact for read in reads for fact in read.facts if fact.kind != "start"]
    most = max((fact.fields.get("nranks", 0) for fact in facts), default=0)
    local = [ranks for ranks in stated if any(rank < 0 for rank in ranks)]
    on_one_node = on_one_node or any(fact.kind == "one_node" for fact in facts)
    agents = {fact.fields.get("agent") for fact in facts} - {None}
    if not on_one_node and (len(agents) > 1 or any(fact.kind == "several_nodes" for fact in facts)):
        return False
    # The first rank of a later node is at least the number of its own.
    begins = min(named) < len(named) if named else on_one_node or bool(prefixed)
    # A launcher's own log shows one node if its local ranks fill all gaps between the ranks from 0 on that speak there;
    # if there are none, such as where all ranks of two nodes speak, if it started as many processes as there are ranks.
    own = {-1 - rank if rank < 0 else rank for ranks in local for rank in ranks}
    pids = {f.fields["pid"] for f in facts if f.kind in ("torchrun_failed", "torchrun_signal") and "pid" in f.fields}
    shown = (own - named or len(pids) == len(own)) and own == {*range(max(named, default=-1) + 1)} and most <= len(own)
    single = max(len(prefixed), len(local)) <= 1 and bool(on_one_node or prefixed or shown)
    return single and begins and all(most <= read.local for read in prefixed)


def _processes(logs: Iterable[tuple[Contents, Owner]]) -> dict[str, int]:
    """Return NCCL's `host:pid` -> rank, from the communicators with the most ranks in the whole evidence."""
    worlds = dict(sorted(item for read, _ in logs for item in read.processes.items()))  # The largest of each is last.
    largest = max((ranks for ranks, _ in worlds.values()), default=0)
    ranked = {process: rank for process, (ranks, rank) in worlds.items() if ranks == largest}
    return ranked if len(set(ranked.values())) == len(ranked) else {}


def adopt_single(evidence: Evidence) -> None:
    """Assign a log without ranks to rank 0 if there is no sign of a second process."""
    records: list[RankError | LogFact] = [*evidence.errors, *evidence.facts]
    ranks = {record.rank for record in (*files_of_ranks(evidence), *evidence.stacks, *records)} - {None, 0}
    files = {record.file for record in records if record.rank is None}
    several = any(fact.kind in _SEVERAL for fact in evidence.facts)
    if evidence.run is not None or (evidence.world_size or 1) > 1 or ranks or len(files) != 1 or several:
        return
    by_launcher = [fact.fields for fact in evidence.facts if fact.kind.startswith(("torchrun_", "srun_"))]
    pids = {fields["pid"] for fields in by_launcher if "pid" in fields}
    if len(pids) > 1 or any(fields.get("local_rank") or {*fields.get("ranks", ())} - {0} for fields in by_launcher):
        return  # It names other processes.
    unassigned = [error for error in evidence.errors if error.rank is None and error.type]
    if not all(error.frames and error.frames[-1].function == "<module>" for error in unassigned):
        return  # Text cut from a log may be from any rank.
    if any(_PARALLEL.search(frame.file.replace("\\", "/")) for error in unassigned for frame in error.frames):
        return
    kinds = [kind_of_exception(error.type, error.message, error.frames) for error in unassigned]
    if not unassigned or any(is_victim(kind) or kind == "unreduced" for kind in kinds):
        return  # It has peers: DDP reduces over several ranks.
    evidence.errors = merge_errors([replace(error, rank=0) for error in evidence.errors])
    evidence.facts = [replace(fact, rank=0) for fact in evidence.facts]


def launched(owners: Iterable[Owner], logs: list[tuple[Contents, Owner]]) -> frozenset[int]:
    """Return ranks for which torchrun created a folder, even an empty one; none for several nodes."""
    placed = [(of.node, of.attempt or 0, of.local_rank) for of in owners if of.local_rank is not None]
    offsets = {read.offset for read, _ in logs if read.offset is not None}
    if len({node for node, _, _ in placed}) != 1 or len(offsets) > 1:
        return frozenset()
    last = max(attempt for _, attempt, _ in placed)
    first = offsets.pop() if offsets else 0
    return frozenset(first + local for _, attempt, local in placed if attempt == last)


def adopt_listed(evidence: Evidence) -> None:
    """Assign the only exception of a log without ranks to the only process that torchrun lists with exit code 1.

    Python exits with that code after an uncaught exception; its peers in the list were stopped by a signal.
    """
    for fact in [fact for fact in evidence.facts if fact.kind == "torchrun_list"]:
        unassigned = [e for e in evidence.errors if e.rank is None and e.type and e.file == fact.file]
        listed = set(fact.fields["ranks"])
        raised = {e.rank for e in evidence.errors if e.rank in listed and e.type}
        by_exit_code = {e.rank for e in evidence.errors if e.rank in listed and e.exit_code == 1 and not e.signal}
        if len(unassigned) == 1 and len(by_exit_code) == 1 and not raised and unassigned[0].line < fact.line:
            own = replace(unassigned[0], rank=by_exit_code.pop())
            evidence.errors = merge_errors([own if e is unassigned[0] else e for e in evidence.errors])


def adopt(evidence: Evidence) -> None:
    """Assign the last messages of an aborting process, without a prefix, to the only rank that died by that signal."""
    died = {(error.signal, error.rank) for error in evidence.errors if error.rank is not None and error.signal}
    by_signal = Counter(signal for signal, _ in died)
    only = {signal: rank for signal, rank in died if by_signal[signal] == 1}
    unassigned = [error for error in evidence.errors if error.rank is None and error.signal in only]
    adopted = [replace(error, rank=only[str(error.signal)]) for error in unassigned]
    evidence.errors = merge_errors([*(error for error in evidence.errors if error not in unassigned), *adopted])
    frames = {error.frames: error.rank for error in adopted if error.frames}
    for n, dump in enumerate(evidence.stacks):
        if dump.rank is None:
            rank = next((frames[thread.frames] for thread in dump.threads if thread.frames in frames), None)
            evidence.stacks[n] = replace(dump, rank=rank)
    aborted = {error.file: error.rank for error in adopted if error.signal == "SIGABRT"}
    for n, fact in enumerate(evidence.facts):
        if fact.rank is None and fact.kind == "gloo_mismatch":
            evidence.facts[n] = replace(fact, rank=aborted.get(fact.file))


def adopt_spied(evidence: Evidence) -> None:
    """Settle whose stacks the files of py-spy hold: numbers in their names that count all files from 0 are ranks, and a
    rank in a command line is none if two processes have it, as local ranks of several nodes.
    """
    evidence.stacks = [dump for dump in evidence.stacks if dump.pid is None or not of_helper(dump)]
    spied = [dump for dump in evidence.stacks if dump.pid is not None]
    pids = {(dump.rank, dump.file): dump.pid for dump in reversed(spied) if dump.rank is not None}
    numbers = {dump.file: rank_in_name(Path(dump.file)) for dump in spied if dump.rank is None}
    counted = not pids and len(numbers) > 1 and {*numbers.values()} == {*range(len(numbers))}
    if counted or len({(rank, pid) for (rank, _), pid in pids.items()}) > len({rank for rank, _ in pids}):
        others = [dump for dump in evidence.stacks if dump.pid is None]
        evidence.stacks = others + [replace(dump, rank=numbers[dump.file] if counted else None) for dump in spied]


def merge_errors(errors: list[RankError]) -> list[RankError]:
    """Merge records from several files about one ending; sort by rank, then by time.

    A traceback in a log repeats the error file; torchrun's list and dtk's status repeat both. The most complete is
    kept, with the exit code, signal, step and time of the others if it has none.
    """
    by_rank: defaultdict[int | None, list[RankError]] = defaultdict(list)
    ordered = sorted(errors, key=attrgetter("file", "line", "type", "message"))
    # The most complete first: with a type, with frames, from a separate file.
    ordered.sort(key=lambda e: (not e.type, not e.frames, e.line > 0 or e.file == "status.json"))
    for error in ordered:
        if error.rank is None:
            matching = (other for other in by_rank[None] if (other.type, other.signal) == (error.type, error.signal))
            if not any(_words(other.message) == _words(error.message) for other in matching):
                by_rank[None].append(error)
            continue
        fuller = by_rank[error.rank]
        index = next((i for i, other in enumerate(fuller) if _same(error, other)), None)
        if index is None:
            fuller.append(error)
        else:
            full = fuller[index]
            lacks = [name for name in _FILLED if getattr(full, name) in (None, "", ())]
            fuller[index] = replace(full, **{name: getattr(error, name) for name in lacks})
    merged = [error for group in by_rank.values() for error in group]
    merged.sort(key=lambda e: (e.time_s is None, e.time_s or 0.0, e.file, e.line, e.type, e.message))
    return sorted(merged, key=lambda error: (error.rank is None, error.rank or 0))


def _same(error: RankError, other: RankError) -> bool:
    """Return whether two records may be about one ending: the same exception, or one has only the exit."""
    if error.type and other.type:
        first, second = _words(error.message), _words(other.message)
        return error.type == other.type and (first.startswith(second[:60]) or second.startswith(first[:60]))
    if error.type or other.type:
        less_complete = other if error.type else error
        return less_complete.signal is None or less_complete.signal == "SIGABRT"
    return error.signal == other.signal or not (error.signal and other.signal)


def _words(text: str) -> str:
    return " ".join(text.split())


class Claims(Struct):
    """World size -> the files that state it."""

    sizes: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    by_rank: set[int] = field(default_factory=set)
    """Sizes in ranks' own dumps or traces, which are from one time, whereas a log may cover restarts."""

    def add(self, size: int, file: str) -> None:
        """Add the world size from a file."""
        if 0 < size <= MOST_RANKS:
            self.sizes[size].append(file)

    def add_of_rank(self, size: int, file: str) -> None:
        """Add the world size from a rank's own dump or trace."""
        self.add(size, file)
        self.by_rank.add(size)


def settle_world_size(evidence: Evidence, claims: Claims) -> None:
    """Set `world_size`. If files contradict each other, add a problem and leave it unknown.

    DiagnosticsError if dumps or traces are from jobs of different sizes.
    """
    weakest = 0
    for fact in evidence.facts:
        nranks = fact.fields.get("nranks")
        if fact.kind in ("world_size", "start") and isinstance(nranks, int):
            claims.add(nranks, fact.file)
        elif fact.kind in ("nccl_init", CALLS) and isinstance(nranks, int):
            weakest = max(weakest, nranks)  # a communicator may belong to a sub-group
    topology = evidence.run.manifest.get("topology") if evidence.run is not None else None
    stated = integer(topology.get("world_size"), 1, MOST_RANKS + 1) if isinstance(topology, dict) else None
    if stated is not None:
        claims.add(stated, "manifest.json")
    if len(claims.sizes) > 1:
        by_size = sorted(claims.sizes.items())
        parts = [f"{counted(size, 'rank')} ({first_of(sorted(files), 1)})" for size, files in by_size]
        if len(claims.by_rank) > 1 and evidence.run is None:
            raise ERRORS("sizes", root=evidence.root, count=len(parts), parts=parts)
        evidence.problems.append(Problem("file", ".", "jobs_mixed", figures={"sizes": parts}))
    evidence.world_size = stated or (next(iter(claims.sizes)) if len(claims.sizes) == 1 else None)
    if not claims.sizes and weakest <= MOST_RANKS:
        evidence.world_size = weakest or None
    for handle in files_of_ranks(evidence):
        if handle.rank is not None and evidence.world_size is not None and handle.rank >= evidence.world_size:
            figures = {"rank": handle.rank, "world_size": evidence.world_size}
            evidence.problems.append(Problem("file", handle.file, "rank_beyond", figures=figures))


def take_environment(evidence: Evidence) -> None:
    """Collect variables from the manifest and those that NCCL or the log prints."""
    if evidence.run is not None:
        recorded = evidence.run.manifest.get("environment")
        if isinstance(recorded, dict):
            values = {name: str(value) for name, value in sorted(recorded.items()) if _VARIABLES.match(str(name))}
            if values:
                evidence.environment[ALL_RANKS] = values
    for fact in evidence.facts:
        if fact.kind in ("nccl_env", "variable") and isinstance(fact.fields.get("name"), str):
            rank = ALL_RANKS if fact.rank is None else fact.rank
            evidence.environment.setdefault(rank, {})[fact.fields["name"]] = str(fact.fields.get("value", ""))
