"""Whether the time of a step is accounted for: a job is healthy only if its traces show it. Decides no causes."""

from collections.abc import Callable, Sequence
from statistics import median, median_high

from msgspec import Struct

from diagnostics.analysis.step_profile.profile import RankProfile
from diagnostics.evidence.trace.model import PAUSE_NS

MOST = 0.1
"""Maximum share of the step that a healthy job may spend in exposed communication, copies or idle without a reason; on
CPU in waiting for late ranks, or without an operation. Ranks that share cores there are late by chance: healthy runs of
two ranks on two cores wait for 3 to 15% of a step at a load of 19 to 26, so 4 of 15 are undecided."""
_LOST_ON_CPU = 0.5
"""Transfer is work there, but a step of which it and stretches without an operation take over half is bound by them."""

LEAST_MS = 1.0  # Minimum length of a window; a shorter one shows a few kernels and no step.
_STRAY = 0.01
"""Share of the window; a device busy for less only holds a context by mistake and does none of the job's work."""


class Account(Struct, frozen=True):
    """The time of the ranks by use, as shares of the window (0 to 1): on devices, of each use on the rank with most."""

    overlap: float | None = None
    """Overlapped share of the communication; None without any."""
    exposed: float = 0.0
    copies: float = 0.0
    idle: float = 0.0
    traced: int = 0
    world_size: int = 0
    on_device: bool = False
    no_device_events: bool = False
    """Whether the job used accelerators but the traces contain no device events."""
    own_kinds: bool = False
    """Whether the profiler does not document which events of the device are work."""
    waiting: float | None = 0.0
    """On CPU: exposed communication minus the time of the same collective without waiting for a rank. The rest
    is work: gloo's threads move and add on the same cores. None = not known, as the ranks were not matched."""
    pauses: float = 0.0
    """On CPU: stretches of a millisecond or more without an operation, on the rank with the least of them. Shorter
    ones are the interpreter at work, and stretches on some ranks only appear as waiting on the others."""

    devices: int = 1
    """Number of devices that one process uses; `idle` then refers to the least busy one."""
    seen_ms: float = 1000.0
    """Length of the window."""

    @property
    def unaccounted(self) -> bool:
        """Whether too much is unexplained, or unseen in ranks that may delay the others, to call the job healthy."""
        if self.no_device_events or self.own_kinds or self.traced < self.world_size or self.seen_ms < LEAST_MS:
            return True
        if self.on_device:
            return max(self.exposed, self.copies, self.idle) > MOST
        waiting = self.exposed if self.waiting is None else self.waiting
        return max(waiting, self.pauses) > MOST or self.exposed + self.pauses > _LOST_ON_CPU


def account(profiles: Sequence[RankProfile], world_size: int | None) -> Account | None:
    """Return the account of the profiles after their collectives were matched over ranks; None without profiles."""
    if not profiles:
        return None

    def share(ns: Callable[[RankProfile], int]) -> list[float]:
        spans = [profile.window.wall + profile.outside for profile in profiles]
        return [ns(profile) / span if span else 0.0 for profile, span in zip(profiles, spans)]

    def idle(profile: RankProfile) -> int:
        """Return the idle ns of the least busy device, including before its first and after its last work."""
        busy = [ns for ns in profile.busy_devices.values() if ns > _STRAY * profile.window.wall]
        least = max(profile.window.idle, profile.window.wall - min(busy)) if busy else profile.window.idle
        return least + profile.outside

    def pauses(profile: RankProfile) -> int:
        return sum(gap.length for gap in profile.gaps if gap.length >= PAUSE_NS and gap.reason != "data")

    def waiting(profile: RankProfile) -> int:
        beyond = sum(call.exposed - (call.exposed_transfer if call.floor >= 0 else 0) for call in profile.calls)
        return min(beyond, profile.window.exposed)  # calls outside the marked steps are not part of the window

    on_device = any(profile.on_device for profile in profiles)
    matched = any(call.floor >= 0 for profile in profiles for call in profile.calls)
    # A group has other ranks, named or not.
    grouped = max((max(call.message.group_size, 2) for profile in profiles for call in profile.calls), default=0)
    windows = [profile.window for profile in profiles]
    overlaps = [window.overlapped / window.communication for window in windows if window.communication]
    return Account(
        overlap=median(overlaps) if overlaps else None,
        exposed=(max if on_device else median_high)(share(lambda profile: profile.window.exposed)),
        copies=max(share(lambda profile: profile.window.memory)),
        idle=max(share(idle)),
        # A rank whose launches are there without the work of its device is not traced.
        traced=sum(profile.on_device for profile in profiles) if on_device else len(profiles),
        world_size=world_size or max(len(profiles), grouped),
        on_device=on_device,
        no_device_events=not on_device and any(profile.on_accelerator for profile in profiles),
        own_kinds=any(profile.own_kinds for profile in profiles),
        waiting=None if on_device or not matched else median_high(share(waiting)),
        pauses=0.0 if on_device else min(share(pauses)),
        devices=max(1, *(len(profile.busy_devices) for profile in profiles)),
        seen_ms=round(max(window.wall for window in windows) / 1e6, 3),
    )
