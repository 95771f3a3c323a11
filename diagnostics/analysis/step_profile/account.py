"""Whether the time of a step is accounted for: a job is called healthy only when its traces say so. No causes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from diagnostics.analysis.step_profile.profile import RankProfile

_MOST = 0.1
"""Share of the step in exposed communication, in copies or idle that a healthy job may leave without a reason."""


@dataclass(frozen=True, slots=True)
class Account:
    """Where the time of the typical rank went, as shares of the window (0 to 1)."""

    overlap: float | None
    """Of the communication; None without any."""
    exposed: float
    copies: float
    idle: float
    traced: int
    world_size: int
    on_device: bool
    no_device_events: bool
    """The job used accelerators, and the traces show nothing of what they did."""

    @property
    def unaccounted(self) -> bool:
        """Whether so much time has no reason, or is not seen, that nothing can be called healthy.

        On CPU ranks share cores, so exposed communication alone says nothing there, except that one rank of several
        cannot speak for the others.
        """
        figures = max(self.exposed, self.copies, self.idle) > _MOST
        return self.no_device_events or self.traced == 1 < self.world_size or (self.on_device and figures)

    def __str__(self) -> str:
        """Return the figures."""
        if self.no_device_events:
            return "the traces hold no event of a device"
        parts = [] if self.overlap is None else [f"{self.overlap:.0%} of the communication overlaps"]
        parts += [
            f"exposed communication {self.exposed:.0%}, copies {self.copies:.0%}, idle {self.idle:.0%} of the step"
        ]
        parts += [f"{self.traced} of {self.world_size} ranks traced"] if self.traced < self.world_size else []
        return ", ".join(parts)


def account(profiles: Sequence[RankProfile], world_size: int | None) -> Account | None:
    """Return the account of traces; None without any."""
    if not profiles:
        return None
    windows = [profile.window for profile in profiles]

    def share(name: str) -> float:
        return median(getattr(window, name) / window.wall if window.wall else 0.0 for window in windows)

    on_device = any(profile.on_device for profile in profiles)
    overlaps = [window.overlapped / window.communication for window in windows if window.communication]
    return Account(
        overlap=median(overlaps) if overlaps else None,
        exposed=share("exposed"),
        copies=share("memory"),
        idle=share("idle"),
        traced=len(profiles),
        world_size=world_size or len(profiles),
        on_device=on_device,
        no_device_events=not on_device
        and any(one.backend == "nccl" or (one.devices and one.backend != "gloo") for one in profiles),
    )
