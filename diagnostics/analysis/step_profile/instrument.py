"""Whether a measurement destroys the overlap that it measures: launches that block, switches that serialise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnostics.analysis.step_profile.profile import RankProfile

SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "HIP_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "AMD_SERIALIZE_KERNEL": "kernels run one after the other",
    "TORCH_NCCL_ENABLE_TIMING": "events around every collective keep it from overlapping (pytorch #143890)",
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for every collective",
    "NCCL_BLOCKING_WAIT": "the host waits for every collective",
}
"""Variable -> what it does to a trace."""
_ON = frozenset({"1", "true", "yes", "on", "y"})
_BLOCKED = 0.98
"""Share of long kernels whose launch returned only when they were over. A launch that does not block returns after 5
to 100 us, also where the host is slow or waits for the device in a call of its own."""
_LEAST_KERNELS = 30
"""Long kernels, below which that share says nothing."""
_LEAST_IDLE = 0.02
"""Share of the window that launches which block leave idle at least; with less of it they cost nothing."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """What serialises the work."""

    ranks: tuple[int, ...]
    variable: str = ""
    """Empty: no variable is recorded, but the kernels show that every launch blocks."""
    value: str = ""


def find_instrument(profiles: Sequence[RankProfile], environment: Mapping[int, Mapping[str, str]]) -> Instrument | None:
    """Return what serialises the work, if anything does.

    Args:
        profiles: of the traced ranks.
        environment: rank (-1 = all) -> variables.
    """
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
