"""All ranks together: profiles, the split into waiting and transfer, and what the run declared."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import asdict

from diagnostics.analysis.processes import spread, usable_cores
from diagnostics.analysis.step_profile import state_calls
from diagnostics.analysis.step_profile.account import account
from diagnostics.analysis.step_profile.breakdown import Breakdown, attainable_percent
from diagnostics.analysis.step_profile.profile import CallProfile, RankProfile, profile
from diagnostics.analysis.step_profile.skew import Skew, find_skew
from diagnostics.contract.files import table_beside
from diagnostics.contract.strategy_traits import UNKNOWN, StrategyTraits
from diagnostics.evidence.budget import budget, disk_bytes
from diagnostics.evidence.limits import uncollected
from diagnostics.evidence.model import Evidence, Problem, RunEvidence
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.nsys import NsysFile
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.readers.trace import TraceFile

SWITCHES: list[str] = table_beside(__file__)["switches"]
"""Environment variables that serialise the traced work; `overlap.instrumented` explains how."""
_ON = frozenset({"1", "true", "yes", "on", "y"})
_BLOCKED = 0.98  # Share of long kernels whose launch returned only after they ended: such launches block.
_LEAST_KERNELS = 30  # Minimum number of long kernels for that share to be meaningful.
_LEAST_IDLE = 0.02  # Minimum share of the window left idle by blocking launches; with less, they cost nothing.


class Instrument(Struct, frozen=True):
    """The cause of serialised work."""

    ranks: tuple[int, ...]
    variable: str = ""
    """Environment variable; empty if none is recorded but the kernels show that every launch blocks."""
    value: str = ""


def find_instrument(profiles: Sequence[RankProfile], environment: Mapping[int, Mapping[str, str]]) -> Instrument | None:
    """Return the cause of serialised work, or None; the environment has variables by rank (-1 for all ranks)."""
    if not any(profile.on_device for profile in profiles):
        return None
    traced = tuple(profile.rank for profile in profiles)
    for name in SWITCHES:
        ranks = {rank: values[name] for rank, values in environment.items() if values.get(name, "").lower() in _ON}
        if ranks:
            return Instrument(traced if -1 in ranks else tuple(sorted(ranks)), name, next(iter(ranks.values())))
    blocked = all(
        profile.long_kernels >= _LEAST_KERNELS
        and profile.blocking >= _BLOCKED
        and profile.window.idle >= _LEAST_IDLE * profile.window.wall
        for profile in profiles
    )
    return Instrument(traced) if blocked else None


SHARE = 0.02
"""Share of the step below which a cost is not worth a finding (runs of one configuration differ by 1 to 2%)."""
MS = 1e6  # Nanoseconds per millisecond.
Unusable = Literal["", "no_trace", "unreadable", "instrumented"]
_LARGE_BYTES = 512 << 20
"""Total decompressed size of all files (some seconds of reading) above which processes are worth starting."""
_GZIP_RATIO = 20  # Decompressed bytes per compressed byte of a trace: JSON of repeated keys.
_RANKS_DRAWN, _SPANS_DRAWN = 16, 120  # Of the timeline of a step; a convention, as below.
_LATENCY_NS, _HOST_LATENCY_NS = 200_000.0, 2e6
"""Maximum latency of a collective on devices and on CPUs: beyond it, also the quickest calls wait for others."""
_QUICKEST = 4  # One part in so many of the tiny calls is those that no rank delayed.
_STEPS_SHOWN = _GROUPS_SHOWN = 50  # A convention, for the size of report.json.


class Overview(Struct):
    """The data from which causes are decided."""

    profiles: list[RankProfile]
    """Profiles sorted by rank."""
    skew: Skew
    reductions: state_calls.Reductions
    units: state_calls.Units
    traced: bool = True
    """Whether there is any trace file."""
    instrument: Instrument | None = None
    """Cause of serialised work in these traces, which makes any other conclusion impossible; None if there is none."""
    world_size: int | None = None
    run: RunEvidence | None = None
    """Evidence of a dtk run; None for other jobs."""
    records: list[RingFile | FlightFile] = field(default_factory=list)
    """Records of calls next to the traces, sorted by rank."""
    data_times: list[tuple[str, list[tuple[int, float, float, float]]]] = field(default_factory=list)
    """Pairs of a log file and its `Steps.data_times`."""
    latency_ns: float = 20_000.0
    """Fixed cost of a collective: the shortest transfers seen, at most 200 us on a device."""

    @property
    def unusable(self) -> Unusable:
        """Reason why nothing can be concluded from the traces; empty if there is none."""
        if not self.profiles:
            return "unreadable" if self.traced else "no_trace"
        return "instrumented" if self.instrument is not None else ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Traced ranks, ascending."""
        return tuple(profile.rank for profile in self.profiles)

    @property
    def calls(self) -> list[CallProfile]:
        """The collectives of all ranks."""
        return [call for profile in self.profiles for call in profile.calls]

    @property
    def on_device(self) -> bool:
        """Whether the work ran on accelerators."""
        return any(profile.on_device for profile in self.profiles)

    @property
    def step_ms(self) -> float:
        """Median length of a step over steps and ranks."""
        return median([(step.end - step.start) / MS for profile in self.profiles for step in profile.steps] or [0.0])

    @property
    def unit(self) -> Literal["step", "window"]:
        """What a cost refers to: the whole window if steps are not marked."""
        return "step" if all(profile.marked for profile in self.profiles) else "window"

    def per_step_ms(self, amount: Callable[[RankProfile], float]) -> dict[int, float]:
        """Convert an amount of ns per rank to ms per step of that rank."""
        return {profile.rank: amount(profile) / MS / max(1, len(profile.steps)) for profile in self.profiles}

    def typical_ms(self, amount: Callable[[RankProfile], float]) -> float:
        """Return the median over ranks of `per_step_ms`."""
        return median(self.per_step_ms(amount).values())

    def per_batch_ms(self, amount: Callable[[state_calls.MicroBatch], float]) -> float:
        """Return the typical ms per step of an amount of ns per micro-batch."""
        return self.typical_ms(lambda profile: sum(map(amount, self.units.of_rank[profile.rank])))

    def typical_count(self, amount: Callable[[RankProfile], int]) -> float:
        """Return the median over ranks of a count per step."""
        return median([amount(profile) / max(1, len(profile.steps)) for profile in self.profiles])

    def declared(self, key: str) -> Any:
        """Return a value of the run's configuration, or None without a dtk run."""
        return None if self.run is None else self.run.get(key)

    @property
    def traits(self) -> StrategyTraits:
        """What is recorded of the strategy of dtk's run; unknown for other jobs."""
        return UNKNOWN if self.run is None else self.run.traits

    @property
    def crowded(self) -> tuple[int, int] | None:
        """Number of ranks and of CPU cores if ranks share cores; None if each has its own, or if unknown."""
        manifest = {} if self.run is None or self.on_device else self.run.manifest
        keys = (("topology", "nproc"), ("hardware", "cores"))
        nproc, cores = (part.get(key) if isinstance(part := manifest.get(name), dict) else None for name, key in keys)
        return (nproc, cores) if isinstance(nproc, int) and isinstance(cores, int) and nproc > cores else None

    @property
    def split(self) -> bool:
        """Whether transfer time is known separately from waiting for late ranks."""
        return self.world_size == 1 or (self.skew.complete and self.skew.matched > 0)

    def worth(self, cost_ms: float) -> bool:
        """Return whether a cost is worth a finding."""
        return cost_ms >= SHARE * self.step_ms and cost_ms > 0

    def measures(self) -> dict[str, Any]:
        """Return `overlap` of `report.measures`."""
        shares = account(self.profiles, self.world_size)
        if shares is None:
            return {}
        if shares.no_device_events:  # What the host did is no time of a step.
            return {"overlap": {"reason": "no_device_events", "account": {"no_device_events": True}}}
        values = {
            "unit": "ms",
            "window": "whole file" if self.on_device else "marked steps",
            "step_ms": round(self.step_ms, 3),
            "steps": max(len(profile.steps) for profile in self.profiles),
            "steps_marked": all(profile.marked for profile in self.profiles),
            "matched_collectives": self.skew.matched,
            "differing": self.skew.differing[:20],
            "account": asdict(shares),
            "ranks": {profile.rank: _rank_measures(profile) for profile in self.profiles},
            "timeline": _timeline(self.profiles),
        }
        return {"overlap": values}


def overview(evidence: Evidence) -> Overview:
    """Read and profile all traces of the evidence; unreadable files are added to its problems."""
    problems = evidence.problems
    profiles = _unique(_profiles(evidence, problems), problems)
    traced = bool(evidence.handles(TraceFile) or evidence.handles(NsysFile))
    if traced:
        evidence.inside["trace" if evidence.handles(TraceFile) else "nsys"] = {profile.rank for profile in profiles}
    profiles = [profile for profile in profiles if profile.on_device] or profiles  # The others show no work of a step.
    world_size = evidence.world_size or next((profile.world_size for profile in profiles if profile.world_size), None)
    several = (fact.fields.get("nranks") or 2 for fact in evidence.facts if fact.kind.startswith("several_"))
    world_size = world_size or max(several, default=None)  # Else a log may show that there are at least so many.
    records: list[RingFile | FlightFile] = [*evidence.handles(RingFile), *evidence.handles(FlightFile)]
    view = Overview(
        profiles=profiles, traced=traced, world_size=world_size, run=evidence.run,
        skew=find_skew(profiles, world_size), reductions=state_calls.find_reductions(profiles),
        units=state_calls.find_units(profiles), instrument=find_instrument(profiles, evidence.environment),
        data_times=[(fact.file, fact.fields["steps"].data_times) for fact in evidence.facts if fact.kind == "steps"],
        records=sorted(records, key=lambda file: (file.rank is None, file.rank or 0, file.file)),
    )  # fmt: skip
    shortest = sorted(call.transfer for call in view.calls if call.message.size_bytes <= state_calls.TINY_BYTES)
    if shortest:
        most = _LATENCY_NS if view.on_device else _HOST_LATENCY_NS
        view.latency_ns = min(float(median(shortest[: max(1, len(shortest) // _QUICKEST)])), most)
    return view


def _rank_measures(profile: RankProfile) -> dict[str, Any]:
    transfer = sum(call.transfer for call in profile.calls) / MS
    waiting = sum(call.exposed - call.exposed_transfer for call in profile.calls) / MS
    is_matched = any(call.floor >= 0 for call in profile.calls)
    reasons = sorted({reason for step in profile.steps for reason in step.gaps})
    result: dict[str, Any] = {name: round(value, 4) for name, value in profile.window.json().items()}
    result |= {
        "transfer_ms": round(transfer, 4) if is_matched else None,
        "waiting_exposed_ms": round(waiting, 4) if is_matched else None,
        "attainable_overlap_percent": round(attainable_percent(transfer, profile.window.compute / MS), 2),
        "idle_by_reason_ms": {
            reason: round(sum(step.gaps.get(reason, 0) for step in profile.steps) / MS, 4) for reason in reasons
        },
        "steps": [
            {"step": step.number, **{name: round(value, 4) for name, value in step.times.json().items()}}
            for step in profile.steps[:_STEPS_SHOWN]
        ],
        "groups": {name: _part(part) for name, part in list(profile.by_group.items())[:_GROUPS_SHOWN]},
        "regions": {name: _part(part) for name, part in profile.by_phase.items()},
        "recognised_by": profile.recognized_by,
    }
    more = {"hta": profile.hta, "unknown_kernels": profile.unknown, "fused_kernels": profile.fused}
    return result | {name: value for name, value in more.items() if value}


def _timeline(profiles: list[RankProfile]) -> dict[str, Any]:
    """Return a step of typical length of the ranks that wait least and most, in ms from its start."""
    steps = profiles[0].steps
    n = sorted(range(len(steps)), key=lambda n: steps[n].end - steps[n].start)[len(steps) // 2]
    ranks = [profile for profile in profiles if len(profile.steps) > n]
    ranks.sort(key=lambda p: sum(c.duration - c.transfer for c in p.calls if c.step == n))
    half = _RANKS_DRAWN // 2
    drawn = ranks if len(ranks) <= _RANKS_DRAWN else ranks[:half] + ranks[-half:]
    return {"step": steps[n].number, "ranks": {p.rank: _track(p, n) for p in sorted(drawn, key=lambda p: p.rank)}}


def _track(profile: RankProfile, n: int) -> dict[str, Any]:
    """Return the longest regions, collectives (with ms of waiting for late ranks) and idle stretches of a step."""
    step = profile.steps[n]

    def spans(parts: Iterable[tuple[str, int, int, int]]) -> list[list[Any]]:
        inside = [(name, max(a, step.start), min(b, step.end), waiting) for name, a, b, waiting in parts]
        longest = sorted((part for part in inside if part[1] < part[2]), key=lambda part: part[1] - part[2])
        ordered = sorted(longest[:_SPANS_DRAWN], key=lambda part: part[1])
        at = step.start
        return [[name, *(round(ns / MS, 4) for ns in (a - at, b - at, w))] for name, a, b, w in ordered]

    passes = [("backward", *interval, 0) for interval in step.backward]
    starts = [step.start, *(end for _, _, end, _ in passes)]
    forwards = [("forward", a, b, 0) for a, (_, b, _, _) in zip(starts, passes)]
    after = [("after backward", starts[-1], step.end, 0)] if passes else []
    return {
        "length_ms": round((step.end - step.start) / MS, 4),
        "regions": spans([*forwards, *passes, *after]),
        "calls": spans((c.message.op, c.start, c.end, c.duration - c.transfer) for c in profile.calls),
        "idle": spans((gap.reason, gap.start, gap.end, 0) for gap in profile.gaps),
    }


def _part(part: Breakdown) -> dict[str, float]:
    times = part.json()
    return {name: round(times[name], 4) for name in ("communication_ms", "overlapped_ms", "exposed_ms")}


def _profiles(evidence: Evidence, problems: list[Problem]) -> list[RankProfile]:
    """Return profiles of traces, otherwise of Nsight exports, which number devices rather than ranks."""
    if evidence.handles(TraceFile):
        problems += [Problem("nsys", export.file, "no_ranks_of_devices") for export in evidence.handles(NsysFile)]
    files: list[TraceFile | NsysFile] = [*evidence.handles(TraceFile)] or [*evidence.handles(NsysFile)]
    profiles: list[RankProfile] = []
    size_bytes = sum(disk_bytes(f.path) * (_GZIP_RATIO if f.path.suffix == ".gz" else 1) for f in files)
    for file, result in zip(files, spread(read_one, files, usable_cores() if size_bytes >= _LARGE_BYTES else 1)):
        kind = "nsys" if isinstance(file, NsysFile) else "trace"
        if isinstance(result, str):
            problems.append(Problem(kind, file.file, result, unread=True))
            continue
        profiles += result
        problems += [problem for profile in result for problem in profile.problems]
    return profiles


def read_one(file: TraceFile | NsysFile) -> list[RankProfile] | str:
    """Return the profiles in one file (an Nsight export may have several devices), or the reason for having none."""
    try:
        with uncollected(), budget(file.limits, disk_bytes(file.path)):  # A tenth of the time.
            if isinstance(file, NsysFile):
                return [profile(trace) for trace in file.load()]
            return [profile(file.load())]
    except (OSError, ValueError, RecursionError, MemoryError) as problem:
        return (problem.strerror if isinstance(problem, OSError) else str(problem)) or type(problem).__name__


def _unique(profiles: list[RankProfile], problems: list[Problem]) -> list[RankProfile]:
    """Return one profile per rank, sorted by rank; of several windows of a rank, the last one."""
    if len(profiles) == 1 and profiles[0].rank < 0:
        profiles[0].rank = 0
    chosen: dict[int, RankProfile] = {}
    latest = sorted(profiles, key=lambda p: (p.rank, p.base_ns + p.steps[0].start, p.kernels, p.file), reverse=True)
    for window in latest:
        if window.rank < 0:
            problems.append(Problem("trace", window.file, "no_rank_of_several"))
        elif window.rank in chosen:
            problems.append(
                Problem("trace", window.file, "second_window", harmless=True, figures={"rank": window.rank})
            )
        else:
            chosen[window.rank] = window
    return [chosen[rank] for rank in sorted(chosen)]
