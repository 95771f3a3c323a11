"""The host waits for the device within the step, so the device idles until it is given work again."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._idle import idle_ms, occupation, others
from diagnostics.causes.overlap._shared import Costly, OnCpu, cost_of, judged, ruled_out, step_cause
from diagnostics.contract.findings import Finding, Remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWaits(Costly):
    """What the host waits in."""

    within: str

    def seen(self) -> str:
        """Return what was seen."""
        return "idle after the host waited for the device"

    def summary(self) -> str:
        """Return what is wrong."""
        return (
            f"The host waits for the device within the step ({self.within}), and the device then idles until it is "
            f"given work again: {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.code(
            f"take {self.within} out of the step: keep values on the device, read them every N steps, copy with "
            "`non_blocking=True`",
            "the host can then launch ahead",
        )


def decide(view: Overview) -> list[Finding]:
    """Decide it by the idle time that begins while the host waits for the device."""
    cause = CAUSE.id
    if not view.on_device:
        return [ruled_out(cause, OnCpu("launches"))]
    ranks, idle = idle_ms(view, "sync")
    within, count = occupation(view, ranks, "sync")
    facts = HostWaits(cost=cost_of(view, idle), within=within)
    shown = f"{count} stretches without work begin while the host stands in {within}"
    return judged(view, cause, facts, shown, ranks=ranks, victims=others(view, ranks), of_transfer=False)


CAUSE = step_cause(
    id="overlap.sync_point",
    title="the host waits for the device in the step",
    branch="slow.idle",
    decide=decide,
    decided_from="traces with host events: idle time that begins while the host waits for the device",
    remedy="no .item(), print or .cpu() in the step",
    example=example("sync_point"),
)
