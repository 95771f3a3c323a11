"""The profile of one rank's trace, from which causes are decided. Small, and can be sent between processes."""

from bisect import bisect_left, bisect_right
from collections import Counter
from operator import attrgetter
from typing import Any

from msgspec import Struct

from diagnostics.analysis.layout import MODEL
from diagnostics.analysis.step_profile.breakdown import Breakdown, Covers, charge, compatible
from diagnostics.analysis.step_profile.classify import TEXT, Call, Work, classify
from diagnostics.analysis.step_profile.copies import CopyProfile, copy_profiles
from diagnostics.analysis.step_profile.gaps import Gap, find_gaps, mark_pauses
from diagnostics.analysis.step_profile.intervals import Interval, total, union
from diagnostics.analysis.step_profile.phases import Phase, Step, find_steps, window
from diagnostics.evidence.trace.events import Message
from diagnostics.evidence.trace.model import About, Trace

INSIDE = frozenset({"control", *MODEL, *(f"mesh_{name}" for name in MODEL)})
"""Groups whose ranks send each other activations, tokens or a few numbers."""
MAX_CALLS = 500_000
"""Collectives kept of one rank."""
_RELEASED_NS = 30_000
"""A kernel that waited for a collective starts within that after it."""
_LONG_NS = 50_000
"""Longer than a launch takes, so that one which waits can be told."""
_CLOCKS_NS = 5_000
"""The clocks of host and device agree to some microseconds."""
_start = attrgetter("start")
_AT_ONCE = 0.1
"""Share of a call beside compute up to which it counts as not overlapped."""


class CallProfile(Struct):
    """One collective of one rank, with what surrounds it."""

    step: int
    """Index in `RankProfile.steps`."""
    message: Message
    start: int
    end: int
    exposed: int
    """Of its time, without compute or copies beside it; time shared with an earlier call is that one's."""
    overlapped: int
    issued: int
    phase: Phase
    micro: int
    """Micro-batch, from 0."""
    on_compute: bool
    """On the stream that computes."""
    waited: bool
    """Compute of the same phase continued only after it, and no compute ran beside it."""
    gap: Gap | None
    """The longest stretch without work between the collective before it and this one."""
    idled: int
    """All stretches without work there."""
    busy: int
    """Compute between the collective before it and this one."""
    why: str
    floor: int = -1
    """The shortest duration of this collective on any rank: its transfer without waiting; -1 = not matched."""

    @property
    def duration(self) -> int:
        """In ns."""
        return self.end - self.start

    @property
    def transfer(self) -> int:
        """Its duration without waiting for late ranks, as far as that is known."""
        return self.duration if self.floor < 0 else self.floor

    @property
    def exposed_transfer(self) -> int:
        """Of the transfer; what is left of `exposed` is waiting for late ranks."""
        return min(self.exposed, self.transfer)


class StepProfile(Struct):
    """One step of one rank."""

    number: int | None
    start: int
    end: int
    times: Breakdown
    micros: int
    """Backward passes; 0 = not visible."""
    backward: list[Interval]
    """On the device."""
    gaps: dict[str, int]
    """Idle ns by reason."""
    optimizer: bool = False
    updated: int = 0
    """Backward passes that the optimizer follows before the next one; 0 where the optimizer is not marked."""


class RankProfile(About, kw_only=True):
    """What one rank's trace says."""

    rank: int
    on_device: bool
    steps: list[StepProfile]
    window: Breakdown
    """Of the whole file."""
    outside: int
    """ns of the marked steps (of the whole trace if no step is marked) before the first and after the last work."""
    busy_devices: dict[str, int]
    """Device -> ns in which it works, where the process uses several; else empty."""
    by_group: dict[str, Breakdown]
    by_phase: dict[str, Breakdown]
    hta: dict[str, float | str] | None
    """As HolisticTraceAnalysis counts."""
    copies: list[CopyProfile]
    """Between host and device, by direction and memory; the costliest first."""
    calls: list[CallProfile]
    gaps: list[Gap]
    """The longest ones."""
    recognised: dict[str, int]
    unknown: dict[str, int]
    fused: dict[str, int]
    kernels: int
    kernel_ns: int
    blocking: float
    """Share of long kernels whose launch returned only when they were over."""
    long_kernels: int
    search_ns: int
    """Spent in the search for unused parameters."""
    compiled: bool
    """Whether `torch.compile` made some of the kernels."""
    marked: bool
    """Whether the trace marks its steps."""

    def state_calls(self) -> list[CallProfile]:
        """Return the collectives that may be of parameters and gradients: not those of groups that divide the model."""
        inside = {name for name, group in self.groups.items() if group.desc in INSIDE} | INSIDE
        return [call for call in self.calls if call.message.group not in inside]


def profile(trace: Trace) -> RankProfile:
    """Boil a trace down."""
    work = classify(trace)
    covers = Covers(work)
    steps = find_steps(trace, work)
    begin, end = window(trace, work)
    gaps = find_gaps(trace, work, covers, begin, end)
    for step in steps if trace.on_device else ():
        first, last = (bisect_left(gaps, border, key=_start) for border in step.device)
        mark_pauses(gaps[first:last], trace)
    calls = _calls(trace, work, covers, steps, gaps)
    # Whether the launch of each long kernel returned only when the kernel was over.
    device, ops = trace.device, trace.ops
    kernels = zip(device.start, device.end, trace.is_memory, trace.returned)
    long = [(end, returned) for start, end, memory, returned in kernels if end - start >= _LONG_NS and not memory]
    blocking = [returned >= end - _CLOCKS_NS for end, returned in long]
    search = {name for name, text in enumerate(trace.names) if TEXT["unused_search"].search(text)}
    about: dict[str, Any] = {name: getattr(trace, name) for name in About.__struct_fields__}
    return RankProfile(
        **about | {"rank": -1 if trace.rank is None else trace.rank},
        on_device=trace.on_device,
        steps=[_step(step, covers, gaps) for step in steps],
        window=covers.breakdown(begin, end),
        outside=max(0, begin - steps[0].host[0]) + max(0, steps[-1].host[1] - end) if trace.on_device else 0,
        busy_devices=_busy_devices(trace),
        by_group=_parts(calls, [call.message.group or "(unknown)" for call in calls], covers, (begin, end)),
        by_phase=_parts(calls, [call.phase or "(unknown)" for call in calls], covers, (begin, end)),
        hta=compatible(trace, work),
        copies=copy_profiles(trace, work, covers),
        calls=calls,
        gaps=sorted(gaps, key=lambda gap: gap.start - gap.end)[:200],
        recognised=dict(Counter(call.why for call in work.calls)),
        unknown=dict(work.unknown.most_common(20)),
        fused=dict(work.fused.most_common(20)),
        kernels=len(work.compute),
        kernel_ns=sum(row[1] - row[0] for row in work.compute),
        blocking=sum(blocking) / len(blocking) if blocking else 0.0,
        long_kernels=len(blocking),
        search_ns=sum(e - s for s, e, n in zip(ops.start, ops.end, ops.name) if n in search) if search else 0,
        compiled=any(map(TEXT["compiled"].search, trace.names)),
        marked=steps[0].number is not None,
    )


def _step(step: Step, covers: Covers, gaps: list[Gap]) -> StepProfile:
    reasons: Counter[str] = Counter()
    first, last = (bisect_left(gaps, border, key=_start) for border in step.device)
    for gap in gaps[first:last]:
        reasons[gap.reason] += gap.end - gap.start
    return StepProfile(
        number=step.number,
        start=step.device[0],
        end=step.device[1],
        times=covers.breakdown(*step.device),
        micros=len(step.backwards),
        backward=[call.device for call in step.backwards],
        gaps=dict(reasons),
        optimizer=step.optimizer_ns is not None,
        updated=step.updated,
    )


def _calls(trace: Trace, work: Work, covers: Covers, steps: list[Step], gaps: list[Gap]) -> list[CallProfile]:
    exposed = charge(covers.exposed, ((call.start, call.end) for call in work.calls))
    starts = [step.device[0] for step in steps]
    hosts = [step.host[0] for step in steps]
    compute_starts = [row[0] for row in work.compute]
    facts: list[CallProfile] = []
    before = starts[0]
    for call, alone in zip(work.calls[:MAX_CALLS], exposed):
        is_issued = call.issued >= 0
        n = bisect_right(hosts if is_issued else starts, call.issued if is_issued else call.start) - 1
        if n < 0:
            before = max(before, call.end)
            n = 0
        step = steps[n]
        phase, micro = step.phase(call.issued, call.thread)
        overlapped = covers.overlapped.within(call.start, call.end)
        first, last = bisect_right(gaps, before, key=_start) - 1, bisect_right(gaps, call.start, key=_start)
        idle = [gap for gap in gaps[max(0, first) : last] if gap.end > before and gap.start < call.start]
        facts.append(
            CallProfile(
                step=n,
                message=call.message,
                start=call.start,
                end=call.end,
                exposed=alone,
                overlapped=overlapped,
                issued=call.issued,
                phase=phase,
                micro=micro,
                on_compute=call.lane == work.compute_lane,
                waited=trace.on_device
                and overlapped <= _AT_ONCE * call.duration
                and _same_phase_after(work, compute_starts, call, step, (phase, micro)),
                gap=max(idle, key=lambda gap: gap.length, default=None),
                idled=sum(gap.length for gap in idle),
                busy=covers.compute.within(before, call.start),
                why=call.why,
            )
        )
        before = max(before, call.end)
    return facts


def _same_phase_after(work: Work, starts: list[int], call: Call, step: Step, phase: tuple[Phase, int]) -> bool:
    """Whether the compute that follows, of which `starts` are the starts, is of the call's phase and micro-batch."""
    n = bisect_left(starts, max(call.start + 1, call.end - call.duration // 10))
    if n >= len(starts) or work.compute[n][3] >= call.end or starts[n] > call.end + _RELEASED_NS:
        return False  # it was not launched yet, or something else held it
    return not phase[0] or step.phase(*work.compute[n][3:5]) == phase


def _busy_devices(trace: Trace) -> dict[str, int]:
    spans: dict[str, list[Interval]] = {str(trace.lanes[lane].owner): [] for lane in set(trace.device.lane)}
    for start, end, lane in zip(trace.device.start, trace.device.end, trace.device.lane) if len(spans) > 1 else ():
        spans[str(trace.lanes[lane].owner)].append((start, end))
    return {device: total(union(own)) for device, own in spans.items()} if len(spans) > 1 else {}


def _parts(calls: list[CallProfile], keys: list[str], covers: Covers, span: Interval) -> dict[str, Breakdown]:
    """Communication by a property of the calls; exposed and overlapped times add up to the rank's."""
    exposed: Counter[str] = Counter()
    overlapped: Counter[str] = Counter()
    length: Counter[str] = Counter()
    until = span[0]
    for call, name in zip(calls, keys):
        since = max(call.start, until)
        exposed[name] += call.exposed
        overlapped[name] += covers.overlapped.within(since, call.end)
        length[name] += max(0, call.end - since)
        until = max(until, call.end)
    wall = span[1] - span[0]
    return {name: Breakdown(wall, 0, length[name], overlapped[name], exposed[name]) for name in sorted(length)}
