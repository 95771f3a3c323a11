"""The host launches kernels too slowly: the device idles briefly before many of them."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import on_cpu, step_cause
from diagnostics.contract.findings import LIKELY, Finding

_HOST_SHARE = 0.15
"""Share of the step below which launch waits do not mean that the host is the limit (healthy eager jobs reach 10%)."""
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the idle time in which the host launches, without the pauses."""
    late = idle(view, "host")
    first = next(profile for profile in view.profiles if profile.rank == late.ranks[0])
    declared = view.declared("train.compile")
    return judged_idle(
        view,
        late,
        LIKELY,
        _TEXTS,
        "compiled" if declared or first.compiled else "eager",
        _HOST_SHARE,
        kernels=round(first.kernels / max(1, len(first.steps))),
        length_us=first.kernel_ns / max(1, first.kernels) / 1000,
        stack=_TEXTS.phrase("stack") if view.profiles[0].settings.get("with_stack") else "",
        override="train.compile=true" if declared is False else "",
    )


CAUSE = step_cause(__file__, decide, unless=(on_cpu("cpu_host"),))
