"""The rows that the terminal and the page share: each table as text, heading first. Knows no markup and no colours."""

from collections.abc import Sequence
from typing import get_args

from dtk.plan.compare import Comparison
from dtk.plan.engines import Difference
from dtk.plan.formatting import bytes_text, count_text, counted, flops_text, percent_text, rate_text, seconds_text
from dtk.plan.prediction import Category, Prediction, Time
from dtk.plan.report.model import Check, PlanReport
from dtk.plan.scaling import Point
from dtk.plan.solve import Largest

Rows = list[tuple[str, ...]]
CATEGORIES: tuple[Category, ...] = get_args(Category)
"""In the order in which they are shown: what stays, then what comes and goes."""
CHECKED = "The two engines, both with the CPU's kernels"
_INVALID = "invalid"
_NOISE = 1e-9
"""Parts of a time below this are what rounding left."""
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_LINKS = {"intra_node": "inside a node", "inter_node": "across nodes"}


def used(plans: Sequence[Prediction]) -> list[Category]:
    """The categories that the peak of any of them holds, in their usual order: one order for all charts of a page."""
    return [name for name in CATEGORIES if any(plan.memory.at_peak_bytes.get(name) for plan in plans)]


def title(plan: Prediction) -> str:
    """`gpt2_xl (1.56 B parameters) under fsdp on 64 ranks`"""
    return (
        f"{plan.model} ({count_text(plan.parameters)} parameters) under {plan.strategy} "
        f"on {counted(plan.world_size, 'rank')}"
    )


def batch(plan: Prediction) -> str:
    """How the batch is divided."""
    accumulation = plan.global_batch_size // (plan.micro_batch_size * plan.world_size)
    return (
        f"{counted(plan.global_batch_size, 'sample')} = {counted(plan.world_size, 'rank')} x {plan.micro_batch_size} "
        f"x {accumulation} accumulated, {counted(plan.sequence_length, 'token')} each"
    )


def verdict(plan: Prediction) -> str:
    """Whether it fits, and by how much."""
    peak, device = plan.memory.peak_bytes, plan.device_memory_bytes
    if device is None:
        return f"{bytes_text(peak)} a rank; add hardware=NAME to learn whether that fits, and how long a step takes"
    gap = f"{bytes_text(abs(device - peak))} ({percent_text(abs(device - peak) / device)})"
    if plan.exceeds_host and peak <= device:
        return f"DOES NOT FIT the host of a node of {plan.hardware}: {host(plan)}"
    if plan.fits:
        return f"FITS {plan.hardware}: {bytes_text(peak)} of {bytes_text(device)}, {gap} to spare"
    return f"DOES NOT FIT {plan.hardware}: {bytes_text(peak)} of {bytes_text(device)}, {gap} too much"


def memory(plan: Prediction) -> list[tuple[Category, int]]:
    """Categories at the peak that are not empty."""
    return [(name, plan.memory.at_peak_bytes[name]) for name in CATEGORIES if plan.memory.at_peak_bytes.get(name)]


def regions(plan: Prediction) -> str:
    """Where the peak stands, and how high the other regions reach."""
    peak = plan.memory
    others = ", ".join(
        f"{name} {bytes_text(size)}" for name, size in peak.by_region_bytes.items() if name != peak.region
    )
    return f"the peak stands in {peak.region}{f' ({others})' if others else ''}"


def host(plan: Prediction) -> str:
    """What offloading keeps in host memory; nothing where nothing is offloaded."""
    if not plan.memory.host_bytes:
        return ""
    there = "" if plan.node_host_bytes is None else f" of {bytes_text(plan.node_host_bytes)}"
    return f"{bytes_text(plan.memory.host_bytes)} a rank, {bytes_text(plan.host_bytes_per_node)} a node{there}"


def precision(report: PlanReport) -> str:
    """`bf16, 989 TFLOP/s peak a device; ...`"""
    peak = report.plan.time.peak_flops if report.plan.time is not None else None
    told = _DTYPES.get(report.compute_dtype, report.compute_dtype)
    told += f", {flops_text(peak)} peak a device" if peak is not None else ""
    return f"{told}; parameters and optimizer state in fp32"


def traffic(plan: Prediction) -> Rows:
    """What one rank sends each step."""
    rows: Rows = [("collective", "group", "ranks", "calls", "buffers", "sent", "link")]
    rows += [
        (
            one.op,
            one.group,
            f"{one.ranks:,}",
            f"{one.count:,}",
            bytes_text(one.size_bytes),
            bytes_text(one.sent_bytes),
            _LINKS[one.link],
        )
        for one in plan.traffic
    ]
    return rows


def time(figures: Time) -> list[tuple[str, str]]:
    """Figures of one step with their names."""
    hidden = figures.communication_s - figures.exposed_s
    hidden = 0.0 if hidden < _NOISE * figures.communication_s else hidden
    exposed = 0.0 if figures.exposed_s < _NOISE * figures.step_s else figures.exposed_s
    return [
        ("step", seconds_text(figures.step_s)),
        (
            "compute",
            f"{seconds_text(figures.compute_s)}, {seconds_text(figures.optimizer_s)} of it clipping and optimizer",
        ),
        (
            "communication",
            f"{seconds_text(figures.communication_s)}, {seconds_text(exposed)} of it exposed"
            + (f", {seconds_text(hidden)} hidden" if hidden > 0 else ""),
        ),
        ("tokens/s", rate_text(figures.tokens_per_s)),
        ("MFU", _mfu(figures)),
        ("scaling", f"{percent_text(figures.scaling_efficiency)} of ranks that communicate nothing"),
    ]


def _mfu(figures: Time) -> str:
    """A part of which peak, and in which type."""
    if figures.mfu is None or figures.peak_flops is None:
        return "-" if figures.mfu is None else percent_text(figures.mfu)
    dtype = _DTYPES.get(figures.matmul_dtype, figures.matmul_dtype)
    return f"{percent_text(figures.mfu)} of {flops_text(figures.peak_flops)} ({dtype})"


def transfers(figures: Time) -> Rows:
    """What the time of the communication is the sum of; heading only where nothing is sent."""
    rows: Rows = [("collective", "group", "algorithm", "calls", "time")]
    rows += [
        (one.op, one.group, one.algorithm, f"{one.count:,}", seconds_text(one.seconds)) for one in figures.transfers
    ]
    return rows


def differences(found: Sequence[Difference]) -> Rows:
    """Where the engines disagree, both figures."""
    rows: Rows = [("figure", "closed form", "simulated")]
    for one in found:
        shown = [bytes_text(n) if one.unit == "bytes" else f"{n:,} calls" for n in (one.closed_form, one.simulated)]
        rows.append((one.what, *shown))
    return rows


def agreement(check: Check) -> str:
    """Whether both engines say the same, in a sentence."""
    if check.differences:
        return "they disagree on what follows; the simulated engine ran the code itself"
    ours, theirs = check.closed_form.memory.peak_bytes, check.simulated.memory.peak_bytes
    apart = percent_text(abs(ours - theirs) / max(ours, theirs, 1))
    told = f"they agree: {bytes_text(ours)} by formula, {bytes_text(theirs)} simulated"
    return f"{told} ({apart} apart), the same collectives"


def notes(plan: Prediction, check: Check | None, own: Sequence[str]) -> list[str]:
    """All that was assumed, each once."""
    timed = plan.time.assumptions if plan.time is not None else ()
    return list(dict.fromkeys([*own, *plan.notes, *timed, *_simulated(check)]))


def _simulated(check: Check | None) -> list[str]:
    return [] if check is None else [f"Simulated: {note}" for note in check.simulated.notes]


def comparison(found: Comparison) -> Rows:
    """Every variant; figures of time only where the device is known."""
    rows: Rows = [("", "strategy", "fits", "memory", "peak in", "sent a step", "step", "tokens/s", "MFU")]
    for row in found.rows:
        mark = "*" if row is found.recommended else ""
        made = row.prediction
        if made is None:
            rows.append((mark, row.variant.name, _INVALID, *["-"] * 6))
        else:
            *others, step, speed, mfu = figures(made)
            if row.variant.offload and made.time is not None:  # Copies to the host and back are not in the time.
                step, speed, mfu = f"> {step}", f"< {speed}", f"< {mfu}"
            rows.append((mark, row.variant.name, *others, step, speed, mfu))
    return rows


def remarks(found: Comparison) -> list[tuple[str, str]]:
    """What the table of the strategies has no room for: a label and a sentence each."""
    told = [("invalid", f"{row.variant.name}: {row.problem}") for row in found.rows if row.prediction is None]
    offloaded: dict[str, list[str]] = {}
    for row in found.rows:
        if row.prediction is not None and row.prediction.memory.host_bytes:
            offloaded.setdefault(host(row.prediction), []).append(row.variant.name)
    told += [("host", f"{' and '.join(names)}: {size} in host memory") for size, names in offloaded.items()]
    mesh = next((row.overrides[1:3] for row in found.rows if any("dp_shard=" in text for text in row.overrides)), ())
    if mesh:
        told.append(("mesh", f"hsdp shards inside a node and replicates across: {' '.join(mesh)}"))
    return told


def impossible(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Why there is no plan for some numbers of ranks."""
    return [
        ("invalid", f"{counted(point.world_size, 'rank')}: {point.problem}")
        for point in points
        if point.prediction is None
    ]


def figures(made: Prediction) -> tuple[str, ...]:
    """Fits, memory, region, sent, step, tokens/s, MFU."""
    fits = {True: "yes", False: "no", None: "?"}[made.fits]
    sent = bytes_text(sum(one.sent_bytes for one in made.traffic))
    known = made.time
    timed = ("-", "-", "-")
    if known is not None:
        mfu = "-" if known.mfu is None else percent_text(known.mfu)
        timed = (seconds_text(known.step_s), rate_text(known.tokens_per_s), mfu)
    return fits, bytes_text(made.memory.peak_bytes), made.memory.region, sent, *timed


def scaling(points: Sequence[Point]) -> Rows:
    """Every number of ranks."""
    rows: Rows = [("ranks", "batch", "fits", "memory", "peak in", "sent a step", "step", "tokens/s", "MFU", "scaling")]
    for point in points:
        made = point.prediction
        if made is None:
            rows.append((f"{point.world_size:,}", "-", _INVALID, *["-"] * 7))
            continue
        efficiency = "-" if made.time is None else percent_text(made.time.scaling_efficiency)
        rows.append((f"{point.world_size:,}", f"{made.global_batch_size:,}", *figures(made), efficiency))
    return rows


def largest(found: Sequence[Largest]) -> Rows:
    """The largest of each kind that fits."""
    rows: Rows = [("", "parameters", "memory", "tokens/s", "type")]
    for one in found:
        made = one.prediction
        if made is None:
            rows.append((one.what, "-", "-", "-", "not even the smallest fits"))
            continue
        speed = "-" if made.time is None else rate_text(made.time.tokens_per_s)
        memory_text = bytes_text(made.memory.peak_bytes)
        rows.append((one.what, count_text(made.parameters), memory_text, speed, " ".join(one.overrides)))
    return rows
