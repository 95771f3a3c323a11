"""Builds the document of a plan: the answer first, then memory, traffic, time, and what was asked for beside it."""

from collections.abc import Callable, Sequence
from typing import get_args

from diagnostics.report import document as doc
from dtk.plan.compare import Comparison
from dtk.plan.formatting import bytes_text, count_text, counted, flops_text, percent_text, rate_text, seconds_text
from dtk.plan.formulas.memory_table import STAGES
from dtk.plan.prediction import Category, Prediction, Time
from dtk.plan.report.model import Check, PlanReport
from dtk.plan.scaling import Point
from dtk.plan.search import Search
from dtk.plan.solve import Largest

CATEGORIES: tuple[Category, ...] = get_args(Category)
"""In the order in which they are shown: what stays, then what comes and goes."""
_BADGES: dict[bool | None, tuple[str, doc.Tone]] = {
    True: ("FITS", "good"),
    False: ("DOES NOT FIT", "bad"),
    None: ("NO DEVICE CHOSEN", "warn"),
}
_BAR = 40
"""Characters of the longest bar in a terminal."""
_ROOM = 1.3
"""Room beyond the outermost points of a logarithmic axis, as a factor."""
_NOISE = 1e-9
"""Parts of a time below this are what rounding left."""
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_LINKS = {"intra_node": "inside a node", "inter_node": "across nodes"}
_COMPARED = (
    "* the simplest that fits, + the fastest if another; "
    "checkpointing = activation checkpointing of every block, offload = to the host."
)


def document(report: PlanReport, *, page: str = "") -> doc.Document:
    """Return the document of a plan.

    Args:
        report: what was planned.
        page: path of the page to name at the end of the terminal's text.
    """
    plan = report.plan
    rows = report.comparison.rows if report.comparison else ()
    plans = [plan, *(row.prediction for row in rows if row.prediction is not None)]
    used = [name for name in CATEGORIES if any(one.memory.at_peak_bytes.get(name) for one in plans)]
    tone = _BADGES[plan.fits][1] if plan.fits is not None else "strong"
    about = (
        doc.Field("job", _title(plan)),
        doc.Field("batch", _batch(plan)),
        doc.Field("compute", _precision(report)),
        *(doc.Field("note", doc.Span(doubt, "warn")) for doubt in report.doubts),
    )
    typed = tuple(span for text in report.job for span in (doc.Span(text, "code"), " "))
    notes = _notes(report)
    return doc.Document(
        title=f"Plan: {_title(plan)}",
        badge=_BADGES[plan.fits],
        answer=doc.Span(_verdict(plan), tone),
        heading=_title(plan),
        lead=doc.present(
            doc.on_page(doc.Paragraph(_verdict(plan)), *((doc.Paragraph(typed),) if typed else ())),
            doc.Fields(about),
        ),
        blocks=doc.present(
            _memory(plan, used),
            _traffic(report),
            _time(plan, plan.time) if plan.time is not None else None,
            _check(report.check) if report.check is not None else None,
            _comparison(report.comparison, used) if report.comparison is not None else None,
            _search(report.search) if report.search is not None else None,
            _scaling(report.scaling, plan) if report.scaling else None,
            doc.Section("Largest model that fits", (_largest(report.models),)) if report.models else None,
            doc.Section("Largest micro-batch that fits", (_largest([report.batch]),))
            if report.batch is not None
            else None,
            _trainings(report) if report.trainings else None,
            doc.Section("Assumed", (doc.Items(notes),)) if notes else None,
            doc.Only(("terminal",), (doc.Fields((doc.Field("page", page),)),)) if page else None,
        ),
        footer="Made by dtk plan. The same as data: dtk plan with --json.",
    )


def _title(plan: Prediction) -> str:
    """Return `gpt2_xl (1.56 B parameters) under fsdp on 64 ranks`."""
    parameters, ranks = count_text(plan.parameters), counted(plan.world_size, "rank")
    return f"{plan.model} ({parameters} parameters) under {plan.strategy} on {ranks}"


def _batch(plan: Prediction) -> str:
    """Return how the batch is divided."""
    ranks = plan.dp_size or plan.world_size
    accumulation = plan.global_batch_size // (plan.micro_batch_size * ranks)
    return (
        f"{counted(plan.global_batch_size, 'sample')} = {counted(ranks, 'rank')} x {plan.micro_batch_size} "
        f"x {accumulation} accumulated, {counted(plan.sequence_length, 'token')} each"
    )


def _precision(report: PlanReport) -> str:
    """Return `bf16, 989 TFLOP/s peak a device; ...`."""
    peak = report.plan.time.peak_flops if report.plan.time is not None else None
    text = _DTYPES.get(report.compute_dtype, report.compute_dtype)
    text += f", {flops_text(peak)} peak a device" if peak is not None else ""
    return f"{text}; parameters and optimizer state in fp32"


def _verdict(plan: Prediction) -> str:
    """Return whether it fits, and by how much."""
    peak, device = plan.memory.peak_bytes, plan.device_memory_bytes
    if device is None:
        return f"{bytes_text(peak)} a rank; add hardware=NAME to learn whether that fits, and how long a step takes"
    gap = f"{bytes_text(abs(device - peak))} ({percent_text(abs(device - peak) / device)})"
    if plan.exceeds_host and peak <= device:
        return f"DOES NOT FIT the host of a node of {plan.hardware}: {_host(plan)}"
    if plan.fits:
        return f"FITS {plan.hardware}: {bytes_text(peak)} of {bytes_text(device)}, {gap} to spare"
    return f"DOES NOT FIT {plan.hardware}: {bytes_text(peak)} of {bytes_text(device)}, {gap} too much"


def _host(plan: Prediction) -> str:
    """Return what offloading keeps in host memory; nothing where nothing is offloaded."""
    if not plan.memory.host_bytes:
        return ""
    available = "" if plan.node_host_bytes is None else f" of {bytes_text(plan.node_host_bytes)}"
    return f"{bytes_text(plan.memory.host_bytes)} a rank, {bytes_text(plan.host_bytes_per_node)} a node{available}"


def _memory(plan: Prediction, used: Sequence[Category]) -> doc.Section:
    memory = plan.memory
    parts = [(name, memory.at_peak_bytes[name]) for name in CATEGORIES if memory.at_peak_bytes.get(name)]
    whole, most = memory.peak_bytes or 1, max((size for _, size in parts), default=1)
    rows: list[tuple[str | doc.Span, ...]] = []
    for name, size in parts:
        share = f"{100 * size / whole:.0f} %" if size / whole >= 0.005 else "< 1 %"
        rows.append((name, bytes_text(size), share, doc.Span("#" * max(1, round(_BAR * size / most)), "code")))
    rows.append((doc.Span("total", "strong"), doc.Span(bytes_text(memory.peak_bytes), "strong"), "-", ""))
    others = [f"{name} {bytes_text(size)}" for name, size in memory.by_region_bytes.items() if name != memory.region]
    regions = f" ({', '.join(others)})" if others else ""
    fields = [doc.Field("peak", f"in {memory.region}{regions}")]
    fields += [doc.Field("host", f"{_host(plan)} in host memory")] if _host(plan) else []
    figures = doc.table([("category", "bytes at the peak"), *(row[:2] for row in rows)])
    return doc.Section(
        f"Memory of the fullest rank ({memory.rank}) at the peak",
        (
            _categories([(plan.strategy, plan)], used),
            doc.Only(("terminal",), (doc.Table(("", "", "", ""), tuple(rows)),)),
            doc.Fields(tuple(fields)),
            doc.Only(("html", "markdown"), (doc.Fold("Figures", (figures,)),)),
        ),
    )


def _categories(plans: Sequence[tuple[str, Prediction]], used: Sequence[Category]) -> doc.Bars:
    """Return what the peak of each plan consists of; `used` gives the order of the colours."""
    bars = []
    for name, made in plans:
        values = tuple(float(made.memory.at_peak_bytes.get(category, 0)) for category in used)
        bars.append(doc.Bar(name, values, tuple(map(bytes_text, values)), bytes_text(made.memory.peak_bytes)))
    return doc.Bars("What the peak consists of", tuple(bars), tuple(used))


def _scaling(points: Sequence[Point], plan: Prediction) -> doc.Section:
    made = [(point.world_size, point.prediction) for point in points if point.prediction is not None]
    drawn: tuple[doc.Block, ...] = ()
    if made:
        memory = tuple((float(ranks), float(one.memory.peak_bytes)) for ranks, one in made)
        drawn = (doc.Section("Memory per rank", (_plot(plan, memory, bytes_text, plan.device_memory_bytes),), 3),)
        speeds = tuple((float(ranks), one.time.tokens_per_s) for ranks, one in made if one.time is not None)
        if speeds:
            drawn += (doc.Section("Tokens per second", (_plot(plan, speeds, count_text),), 3),)
    rows: list[tuple[str, ...]] = [
        ("ranks", "batch", "fits", "memory", "peak in", "sent a step", "step", "tokens/s", "MFU", "scaling")
    ]
    for point in points:
        prediction = point.prediction
        if prediction is None:
            rows.append((f"{point.world_size:,}", "-", "invalid", *["-"] * 7))
            continue
        efficiency = "-" if prediction.time is None else percent_text(prediction.time.scaling_efficiency)
        batch = f"{prediction.global_batch_size:,}"
        rows.append((f"{point.world_size:,}", batch, *_figures(prediction), efficiency))
    invalid = tuple(
        doc.Field("invalid", f"{counted(point.world_size, 'rank')}: {point.problem}")
        for point in points
        if point.prediction is None
    )
    note = "Each rank does as much as in the planned job, so the global batch grows with the ranks."
    return doc.Section(
        "Over numbers of ranks",
        doc.present(
            doc.remark(note),
            doc.on_page(*drawn),
            doc.Fold("Figures", (doc.table(rows),)),
            doc.Fields(invalid) if invalid else None,
        ),
    )


def _plot(
    plan: Prediction,
    points: tuple[tuple[float, float], ...],
    text: Callable[[float], str],
    device_bytes: int | None = None,
) -> doc.Plot:
    """Return memory under the device's, or tokens/s on logarithmic axes beside as many times those of the first."""
    dots = tuple(doc.Dot(x, y, f"{plan.strategy}, {x:,.0f} ranks: {text(y)}") for x, y in points)
    ranks = [x for x, _ in points]
    values = [y for _, y in points]
    across = doc.axis(lambda value: f"{value:,.0f}", ranks, log=True, ticks=ranks)
    curve = doc.Curve(plan.strategy, points, dots=dots)
    if text is bytes_text:
        limit = (doc.Mark(f"device {bytes_text(device_bytes)}", y=float(device_bytes)),) if device_bytes else ()
        top = doc.axis(text, [0.0, _ROOM * max([*values, device_bytes or 0])])
        label = "Memory per rank over numbers of ranks"
        return doc.Plot(label, across, top, (curve,), limit, legend=False, height=260.0)
    (first, speed), *_ = points
    ideal = tuple((x, speed * x / first) for x in ranks)
    up = doc.axis(text, [*values, *(y for _, y in ideal)], log=True, room=_ROOM)
    name = "as many times the first"
    reached = tuple(doc.Dot(x, y, f"{name}, {x:,.0f} ranks: {text(y)}") for x, y in ideal)
    curves = (curve, doc.Curve(name, ideal, "reference", dots=reached))
    return doc.Plot("Tokens per second over numbers of ranks", across, up, curves, height=260.0)


def _comparison(found: Comparison, used: Sequence[Category]) -> doc.Section:
    rows: list[tuple[str, ...]] = [
        ("", "strategy", "fits", "memory", "peak in", "sent a step", "step", "tokens/s", "MFU")
    ]
    offloaded: dict[str, list[str]] = {}
    for row in found.rows:
        made = row.prediction
        mark = "*" if row is found.recommended else "+" if row is found.fastest else ""
        if made is None:
            rows.append((mark, row.variant.name, "invalid", *["-"] * 6))
            continue
        *others, step, speed, mfu = _figures(made)
        if row.variant.offload and made.time is not None:  # Copies to the host and back are not in the time.
            step, speed, mfu = f"> {step}", f"< {speed}", f"< {mfu}"
        rows.append((mark, row.variant.name, *others, step, speed, mfu))
        if made.memory.host_bytes:
            offloaded.setdefault(_host(made), []).append(row.variant.name)
    remarks = [("invalid", f"{row.variant.name}: {row.problem}") for row in found.rows if row.prediction is None]
    remarks += [("host", f"{' and '.join(names)}: {size} in host memory") for size, names in offloaded.items()]
    mesh = next((row.overrides[1:3] for row in found.rows if any("dp_shard=" in text for text in row.overrides)), ())
    if mesh:
        remarks.append(("mesh", f"hsdp shards inside a node and replicates across nodes: {' '.join(mesh)}"))
    fields = [doc.Field(label, doc.Span(text, "soft")) for label, text in remarks]
    chosen = [("simplest" if found.fastest else "take", found.recommended), ("fastest", found.fastest)]
    fields += [
        doc.Field(label, doc.Span(" ".join(row.overrides), "code"), "good") for label, row in chosen if row is not None
    ]
    fields += [doc.Field("why", reason) for reason in found.reasons]
    drawn = [(row.variant.name, row.prediction) for row in found.rows if row.prediction is not None]
    return doc.Section(
        "Strategies side by side, the simplest first",
        doc.present(
            _categories(drawn, used) if drawn else None,
            doc.table(rows),
            doc.remark(_COMPARED),
            doc.Fields(tuple(fields)) if fields else None,
        ),
    )


def _search(search: Search) -> doc.Section:
    """Return the layouts that fit, the fastest first."""
    rows: list[tuple[str, ...]] = [("", "memory", "step", "bubble", "exposed", "tokens/s", "MFU", "type")]
    for number, one in enumerate(search.found, 1):
        made, time = one.prediction, one.prediction.time
        assert time is not None
        _, memory, *_, step, speed, mfu = _figures(made)
        waits = percent_text(time.bubble_s / time.step_s), percent_text(time.exposed_s / time.step_s)
        rows.append((f"{number}", memory, step, *waits, speed, mfu, " ".join(one.overrides)))
    count = f"{search.layouts:,} layouts: {search.too_large:,} too large, {search.too_slow:,} left out as too slow"
    fields = [doc.Field("searched", count), *(doc.Field("why", reason) for reason in search.reasons)]
    blocks = doc.present(doc.table(rows) if search.found else None, doc.Fields(tuple(fields)))
    return doc.Section("Layouts that fit, the fastest first", blocks)


def _figures(made: Prediction) -> tuple[str, ...]:
    """Return fits, memory, region, sent, step, tokens/s, MFU."""
    fits = {True: "yes", False: "no", None: "?"}[made.fits]
    sent = bytes_text(sum(one.sent_bytes for one in made.traffic))
    timed = ("-", "-", "-")
    if made.time is not None:
        mfu = "-" if made.time.mfu is None else percent_text(made.time.mfu)
        timed = (seconds_text(made.time.step_s), rate_text(made.time.tokens_per_s), mfu)
    return fits, bytes_text(made.memory.peak_bytes), made.memory.region, sent, *timed


def _traffic(report: PlanReport) -> doc.Section:
    """Return what one rank sends each step."""
    rows: list[tuple[str, ...]] = [("collective", "group", "ranks", "calls", "buffers", "sent", "link")]
    for one in report.plan.traffic:
        counts = (f"{one.ranks:,}", f"{one.count:,}", bytes_text(one.size_bytes), bytes_text(one.sent_bytes))
        rows.append((one.op, one.group, *counts, _LINKS[one.link]))
    title = f"Communication of one rank per step ({report.local_size} ranks a node)"
    return doc.Section(title, (doc.table(rows) if len(rows) > 1 else doc.Paragraph("none: there is one rank"),))


def _time(plan: Prediction, time: Time) -> doc.Section:
    hidden = time.communication_s - time.exposed_s
    hidden = 0.0 if hidden < _NOISE * time.communication_s else hidden
    exposed = 0.0 if time.exposed_s < _NOISE * time.step_s else time.exposed_s
    compute = f"{seconds_text(time.compute_s)}, {seconds_text(time.optimizer_s)} of it clipping and optimizer"
    communication = f"{seconds_text(time.communication_s)}, {seconds_text(exposed)} of it exposed"
    communication += f", {seconds_text(hidden)} hidden" if hidden > 0 else ""
    mfu = "-" if time.mfu is None else percent_text(time.mfu)
    if time.mfu is not None and time.peak_flops is not None:
        mfu += f" of {flops_text(time.peak_flops)} ({_DTYPES.get(time.matmul_dtype, time.matmul_dtype)})"
    waited = f"{seconds_text(time.bubble_s)}, {percent_text(time.bubble_s / time.step_s)} of the step"
    bubble = (doc.Field("bubble", f"{waited}: the busiest stage waits for the others"),) if time.bubble_s else ()
    fields = (
        doc.Field("step", seconds_text(time.step_s)),
        doc.Field("compute", compute),
        doc.Field("communication", communication),
        *bubble,
        doc.Field("tokens/s", rate_text(time.tokens_per_s)),
        doc.Field("MFU", mfu),
        doc.Field("scaling", f"{percent_text(time.scaling_efficiency)} of ranks that communicate nothing"),
    )
    rows: list[tuple[str, ...]] = [("collective", "group", "algorithm", "calls", "time")]
    rows += [(one.op, one.group, one.algorithm, f"{one.count:,}", seconds_text(one.seconds)) for one in time.transfers]
    return doc.Section(
        f"Time of one step on {plan.hardware}",
        doc.present(doc.Fields(fields), doc.table(rows) if len(rows) > 1 else None),
    )


def _check(check: Check) -> doc.Section:
    """Return whether both engines say the same, and where they do not both figures."""
    rows: list[tuple[str, ...]] = [("figure", "closed form", "simulated")]
    for one in check.differences:
        shown = [bytes_text(n) if one.unit == "bytes" else f"{n:,} calls" for n in (one.closed_form, one.simulated)]
        rows.append((one.what, *shown))
    formula, simulated = check.closed_form.memory.peak_bytes, check.simulated.memory.peak_bytes
    apart = percent_text(abs(formula - simulated) / max(formula, simulated, 1))
    text = f"they agree: {bytes_text(formula)} by formula, {bytes_text(simulated)} simulated"
    text += f" ({apart} apart), the same collectives"
    if check.differences:
        text = "they disagree on what follows; the simulated engine ran the code itself"
    field = doc.Field("check", text, "warn" if check.differences else "good")
    return doc.Section(
        "The two engines, both with the CPU's kernels",
        doc.present(doc.Fields((field,)), doc.table(rows) if check.differences else None),
    )


def _largest(found: Sequence[Largest]) -> doc.Table:
    """Return the largest of each kind that fits."""
    rows: list[tuple[str, ...]] = [("", "parameters", "memory", "tokens/s", "type")]
    for one in found:
        made = one.prediction
        if made is None:
            rows.append((one.what, "-", "-", "-", "not even the smallest fits"))
            continue
        speed = "-" if made.time is None else rate_text(made.time.tokens_per_s)
        figures = (count_text(made.parameters), bytes_text(made.memory.peak_bytes), speed)
        rows.append((one.what, *figures, " ".join(one.overrides)))
    return doc.table(rows)


def _trainings(report: PlanReport) -> doc.Section:
    """Return bytes per parameter, and those of the whole model on one rank under each stage of ZeRO."""
    plan = report.plan
    ranks = plan.dp_size or plan.world_size
    rows: list[tuple[str, ...]] = [
        (
            "training",
            "weights",
            "gradients",
            "master",
            "momentum",
            "variance",
            "together",
            *map("ZeRO-{}".format, STAGES),
        )
    ]
    for one in report.trainings:
        sizes = (one.weights, one.gradients, one.master, one.momentum, one.variance, one.per_parameter)
        shares = (bytes_text(one.rank_bytes(plan.parameters, stage, ranks)) for stage in STAGES)
        rows.append((one.name, *map(str, sizes), *shares))
    note = (
        "ZeRO-1 shards master, momentum and variance, ZeRO-2 gradients too, ZeRO-3 weights too. dtk keeps the row fp32 "
        "under every precision: its weights are the master, and copies of 16 bits live while they compute."
    )
    title = f"Model states with Adam: bytes per parameter, and of all on one of {counted(ranks, 'data-parallel rank')}"
    return doc.Section(title, (doc.table(rows), doc.remark(note)))


def _notes(report: PlanReport) -> tuple[str, ...]:
    """Return all that was assumed, each once."""
    timed = report.plan.time.assumptions if report.plan.time is not None else ()
    simulated = [] if report.check is None else [f"Simulated: {note}" for note in report.check.simulated.notes]
    return tuple(dict.fromkeys([*report.notes, *report.plan.notes, *timed, *simulated]))
