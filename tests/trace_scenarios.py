"""The simulated jobs of the causes, each with the root cause that must be diagnosed, and healthy ones."""

from collections.abc import Callable
from dataclasses import dataclass

from diagnostics.causes.overlap._examples import JOBS, LATE, MIB, RANKS, ddp, fsdp
from diagnostics.causes.overlap._simulator import Simulator

__all__ = ["LATE", "SCENARIOS", "Scenario", "ddp", "fsdp"]


@dataclass(frozen=True)
class Scenario:
    """A job and its truth."""

    name: str
    build: Callable[[], Simulator]
    cause: str = ""
    """Empty = healthy."""
    ranks: tuple[int, ...] = RANKS


_HEALTHY = (
    Scenario("ddp", lambda: ddp(Simulator())),
    Scenario("ddp, no_sync", lambda: ddp(Simulator(), micros=4, sync=lambda micro: micro == 3)),
    Scenario("ddp, small model", lambda: ddp(Simulator(), buckets=2, size=3 * MIB, transfer=300.0)),
    Scenario("ddp, jitter", lambda: ddp(Simulator(), scale=lambda rank: 1 + 0.003 * rank)),
    Scenario("fsdp", lambda: fsdp()),
    Scenario("fsdp, few units", lambda: fsdp(units=6)),
)
_CAUSES = {
    "accumulation": "accumulation_sync",
    "one_bucket": "single_bucket",
    "tiny_buckets": "small_buckets",
    "unbucketed": "unbucketed",
    "find_unused": "find_unused",
    "same_stream": "same_stream",
    "tensor_parallel": "blocking_wait",
    "root_only": "root_only_wrapping",
    "no_prefetch": "no_prefetch",
    "tiny_units": "small_units",
    "bound": "communication_bound",
    "longer_compute": "skew",
    "late_host": "pause",
    "late_loader": "data_bound",
    "slow_launches": "host_bound",
    "sync_point": "sync_point",
    "loader": "data_bound",
    "copies": "copies",
    "launch_blocking": "instrumented",
}
_ONE_RANK = ("longer_compute", "late_host", "late_loader")
SCENARIOS = _HEALTHY + tuple(
    Scenario(job, build, f"overlap.{_CAUSES[job]}", (LATE,) if job in _ONE_RANK else RANKS)
    for job, build in JOBS.items()
)
