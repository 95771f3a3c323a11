"""The host launches too slowly: the device idles for a little while before many of its kernels."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap import _shared as shared
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.contract.findings import Finding

_HOST_SHARE = 0.15
"""Of the step: below it a device that waits for launches is not limited by its host (healthy eager jobs reach 10 %)."""


def _words(cost: shared.StepCost, *, compiled: bool | None, with_stack: bool) -> shared.Words:
    """Put it into words; recording stacks (`with_stack`) slows the host down."""
    graphs, why = (
        "capture CUDA graphs; use fused optimizers; pin the process",
        "fewer launches, by a host that runs ahead",
    )
    change = f"`torch.compile` the model or {graphs}"
    if compiled:
        change = 'capture CUDA graphs (`torch.compile(mode="reduce-overhead")`), enlarge the batch, pin the process'
        why = "the model is compiled already; fewer launches need graphs or more work each"
    stack = " The profiler recorded stacks, which slows the host down." if with_stack else ""
    return shared.Words(
        seen="idle for late launches",
        summary=f"The device waits for its host to launch the next kernel: {cost}.{stack}",
        change=change,
        why=why,
        override="train.compile=true" if compiled is False else "",
    )


def decide(view: Overview) -> Finding:
    """Decide it by the idle time before launches, without the pauses."""
    late = idle(view, "host")
    if late.ms < _HOST_SHARE * view.step_ms or not view.worth(late.ms):
        sentence = "idle for late launches {ms} ms of {step_ms} ms a step, the host's limit begins at {least:.0%}"
        return shared.ruled_out(
            sentence, ms=shared.figure(late.ms), step_ms=shared.figure(view.step_ms), least=_HOST_SHARE
        )
    first = next(profile for profile in view.profiles if profile.rank == late.ranks[0])
    declared = view.declared("train.compile")
    kernels = round(first.kernels / max(1, len(first.steps)))
    length_us = shared.figure(first.kernel_ns / max(1, first.kernels) / 1000)
    return judged_idle(
        view,
        late,
        f"{kernels} kernels a {view.unit} of {length_us} us on average",
        0.85,
        _words,
        compiled=True if declared or first.compiled else declared,
        with_stack=bool(view.profiles[0].settings.get("with_stack")),
    )


CAUSE = shared.step_cause(__file__, decide, unless=(shared.on_cpu("no host waits for a device"),))
