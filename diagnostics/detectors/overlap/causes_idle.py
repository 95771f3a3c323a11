"""A device that waits for its host: late launches, waits of the host for the device, the data loader."""

from collections import Counter
from statistics import median

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import RankProfile
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.detectors.overlap.decide import confirmed, figure, of_step, ruled_out, too_little
from diagnostics.evidence.model import Evidence

CAUSES = ("overlap.host_bound", "overlap.sync_point", "overlap.data_bound")
_HOST_SHARE = 0.15
"""Of the step: a device idles so much for launches before the host counts as its limit."""
_CPU_DATA_SHARE = 0.1
_OUTLIER = 3.0
"""A rank that idles that many times longer than the median is named alone."""


def decide(view: Overview, evidence: Evidence) -> list[Finding]:
    """All causes of this family."""
    return [_host(view), _sync(view), _data(view)]


def _idle_ms(view: Overview, reason: str) -> dict[int, float]:
    """Per rank, idle ms a step for one reason: the median over its steps, so that one hiccup is none."""
    return {one.rank: median([step.gaps.get(reason, 0) / MS for step in one.steps] or [0.0]) for one in view.profiles}


def _who(view: Overview, idle: dict[int, float]) -> tuple[tuple[int, ...], float]:
    """Ranks to name and their cost: all, or those that stand out."""
    typical = median(idle.values())
    worst = max(idle.values())
    if len(idle) > 1 and worst > _OUTLIER * typical and view.worth(worst - typical):
        chosen = tuple(sorted(rank for rank, ms in idle.items() if ms > max(_OUTLIER * typical, worst / 2)))
        return chosen, worst
    return view.ranks, typical


def _detail(view: Overview, ranks: tuple[int, ...], reason: str) -> tuple[str, int]:
    """What the host did in most of that time, and in how many stretches of the longest ones."""
    found: Counter[str] = Counter()
    count = 0
    for one in view.profiles:
        if one.rank in ranks:
            for gap in one.gaps:
                if gap.reason == reason:
                    found[gap.detail] += gap.length
                    count += 1
    return (max(found, key=lambda name: (found[name], name)) if found else ""), count


def _kernel_us(one: RankProfile) -> float:
    return one.kernel_ns / max(1, one.kernels) / 1000


def _host(view: Overview) -> Finding:
    cause = "overlap.host_bound"
    if not view.on_device:
        return ruled_out(cause, "work runs on CPU: the host is the device")
    idle = _idle_ms(view, "host")
    ranks, cost = _who(view, idle)
    if cost < _HOST_SHARE * view.step_ms or not view.worth(cost):
        return ruled_out(
            cause, f"idle for late launches {of_step(view, cost)}, the host's limit begins at {_HOST_SHARE:.0%}"
        )
    one = next(profile for profile in view.profiles if profile.rank == ranks[0])
    per_step = one.kernels / max(1, len(one.steps))
    compiled = view.declared("train.compile")
    override = compiled is False
    stack = (
        " The profiler recorded stacks, which slows the host down."
        if view.profiles[0].settings.get("with_stack")
        else ""
    )
    return confirmed(
        view,
        cause,
        f"The device waits for its host to launch the next kernel: {of_step(view, cost)}.{stack}",
        cost,
        ranks=ranks,
        victims=tuple(rank for rank in view.ranks if rank not in ranks),
        of_transfer=False,
        details=[f"{per_step:.0f} kernels a {view.unit} of {figure(_kernel_us(one))} us on average"],
        confidence=0.85,
        remedies=[
            Remedy("override", "train.compile=true", "fewer and longer kernels", f"at most {of_step(view, cost)}")
            if override
            else Remedy(
                "code",
                "`torch.compile` the model or capture CUDA graphs; use fused optimizers; pin the process",
                "fewer launches, and a host that runs ahead",
                f"at most {of_step(view, cost)}",
            )
        ],
    )


def _sync(view: Overview) -> Finding:
    cause = "overlap.sync_point"
    if not view.on_device:
        return ruled_out(cause, "work runs on CPU: no host waits for a device")
    idle = _idle_ms(view, "sync")
    ranks, cost = _who(view, idle)
    if not view.worth(cost):
        return too_little(view, cause, cost, "idle after the host waited for the device")
    what, count = _detail(view, ranks, "sync")
    return confirmed(
        view,
        cause,
        f"The host waits for the device within the step ({what}), and the device then idles until it is given work "
        f"again: {of_step(view, cost)}.",
        cost,
        ranks=ranks,
        victims=tuple(rank for rank in view.ranks if rank not in ranks),
        of_transfer=False,
        details=[f"{count} stretches without work begin while the host stands in {what}"],
        remedies=[
            Remedy(
                "code",
                f"take {what} out of the step: keep values on the device, read them every N steps, copy with "
                "`non_blocking=True`",
                "the host can then launch ahead",
                f"at most {of_step(view, cost)}",
            )
        ],
    )


def _data(view: Overview) -> Finding:
    cause = "overlap.data_bound"
    idle = _idle_ms(view, "data")
    ranks, cost = _who(view, idle)
    if not view.worth(cost):
        return too_little(view, cause, cost, "idle while the host waits for data")
    if not view.on_device and cost < _CPU_DATA_SHARE * view.step_ms:
        return ruled_out(cause, f"waiting for data {of_step(view, cost)}, on CPU below {_CPU_DATA_SHARE:.0%}")
    what, _ = _detail(view, ranks, "data")
    return confirmed(
        view,
        cause,
        f"The step waits for its data ({what}): {of_step(view, cost)}.",
        cost,
        ranks=ranks,
        victims=tuple(rank for rank in view.ranks if rank not in ranks),
        of_transfer=False,
        details=[f"the device idles while the host stands in {what}"],
        remedies=[
            Remedy(
                "code",
                "give the DataLoader more `num_workers`, `prefetch_factor=4`, `persistent_workers=True` and "
                "`pin_memory=True`",
                "batches are then ready before they are needed",
                f"at most {of_step(view, cost)}",
            )
        ],
    )
