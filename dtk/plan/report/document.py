"""Builds the document of a plan: the answer first, then memory, traffic, time and the optional sections."""

from collections.abc import Sequence
from typing import get_args

from diagnostics.contract.formatting import bytes_text, counted, seconds_text
from diagnostics.report import document as doc
from diagnostics.report.drawings import colours_of_memory
from dtk.parallel.batch_plan import BatchPlan
from dtk.plan.compare import Comparison
from dtk.plan.formatting import count_text, flops_text, percent_text, rate_text
from dtk.plan.formulas.holding import STAGES
from dtk.plan.prediction import Category, Prediction, Time
from dtk.plan.report.model import Check, PlanReport
from dtk.plan.search import Search
from dtk.plan.solve import Largest, Point

CATEGORIES: tuple[Category, ...] = get_args(Category)
"""Memory categories in display order: permanent ones first, then temporary ones."""
Rows = list[tuple[str, ...]]  # Rows of a table, the header first.
_BADGES: dict[bool | None, tuple[str, doc.Tone]]
_BADGES = {True: ("FITS", "good"), False: ("DOES NOT FIT", "bad"), None: ("NO DEVICE CHOSEN", "warn")}
_BAR = 40  # Length of the longest bar in a terminal, in characters.
_ROOM = 1.3  # Margin around the outermost points of a logarithmic axis, as a factor.
_NOISE = 1e-9  # Smaller parts of a time are rounding errors.
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_LINKS = {"intra_node": "inside a node", "inter_node": "across nodes"}


def document(report: PlanReport, *, page: str = "") -> doc.Document:
    """Return the document of a plan."""
    plan = report.plan
    parameters, ranks = count_text(plan.parameters), counted(plan.world_size, "rank")
    heading = f"{plan.model} ({parameters} parameters) under {plan.strategy} on {ranks}"
    answer = _verdict(plan)
    rows = report.comparison.rows if report.comparison else ()
    plans = [plan, *(row.prediction for row in rows if row.prediction is not None)]
    used = [name for name in CATEGORIES if any(each.memory.at_peak_bytes.get(name) for each in plans)]
    typed = tuple(span for text in report.job for span in (doc.Span(text, "code"), " "))
    solved = [("Largest model that fits", report.models), ("Largest micro-batch that fits", [report.batch])]
    timed = plan.time.assumptions if plan.time is not None else ()
    simulated = [] if report.check is None else [f"Simulated: {note}" for note in report.check.simulated.notes]
    notes = tuple(dict.fromkeys([*report.notes, *plan.notes, *timed, *simulated]))
    return doc.Document(
        title=f"Plan: {heading}",
        badge=_BADGES[plan.fits],
        answer=doc.Span(answer, "strong" if plan.fits is None else _BADGES[plan.fits][1]),
        heading=(doc.Span(plan.model, "code"), heading.removeprefix(plan.model)),
        lead=doc.present(
            doc.on_page(doc.Paragraph(answer), *((doc.Paragraph(typed),) if typed else ())), _about(report, heading)
        ),
        blocks=doc.present(
            _memory(plan, used),
            _traffic(report),
            _time(plan, plan.time) if plan.time is not None else None,
            _check(report.check) if report.check is not None else None,
            _comparison(report.comparison, used) if report.comparison is not None else None,
            _search(report.search) if report.search is not None else None,
            _scaling(report.scaling, plan) if report.scaling else None,
            *(doc.Section(title, (_largest(largest),)) for title, all_ in solved if (largest := [*filter(None, all_)])),
            _trainings(report) if report.trainings else None,
            doc.Section("Assumed", (doc.Items(notes),)) if notes else None,
            doc.Only(("terminal",), (doc.Fields((doc.Field("page", page),)),)) if page else None,
        ),
        footer="Made by dtk plan. The same as data: dtk plan with --json.",
    )


def _about(report: PlanReport, heading: str) -> doc.Fields:
    """Return the job, the division of its batch, its dtype (`bf16, 989 TFLOP/s peak a device`) and doubts."""
    plan = report.plan
    ranks = plan.dp_size or plan.world_size
    steps = BatchPlan(plan.global_batch_size, plan.micro_batch_size, ranks).accumulation_steps
    batch = f"{counted(plan.global_batch_size, 'sample')} = {counted(ranks, 'rank')} x {plan.micro_batch_size} x "
    batch += f"{steps} accumulated"
    batch += f", {plan.sequence_length:,} tokens each" if plan.sequence_length > 1 else ""  # Else samples are not text.
    compute = _DTYPES.get(report.compute_dtype, report.compute_dtype)
    if plan.time is not None and plan.time.peak_flops is not None:
        compute += f", {flops_text(plan.time.peak_flops)} peak a device"
    compute += "; parameters and optimizer state in fp32"
    fields = [doc.Field("job", heading), doc.Field("batch", batch)]
    fields += [doc.Field("compute", compute)] if report.compute_dtype else []
    return doc.Fields((*fields, *(doc.Field("note", doc.Span(doubt, "warn")) for doubt in report.doubts)))


def _verdict(plan: Prediction) -> str:
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
    """Return the use of host memory by offloading; empty without offloading."""
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
        share = f"{size / whole:.0%}" if size / whole >= 0.005 else "< 1%"
        rows.append((name, bytes_text(size), share, doc.Span("#" * max(1, round(_BAR * size / most)), "code")))
    rows.append((doc.Span("total", "strong"), doc.Span(bytes_text(memory.peak_bytes), "strong"), "-", ""))
    others = [f"{name} {bytes_text(size)}" for name, size in memory.by_region_bytes.items() if name != memory.region]
    fields = [doc.Field("peak", f"in {memory.region}" + (f" ({', '.join(others)})" if others else ""))]
    fields += [doc.Field("host", f"{_host(plan)} in host memory")] if _host(plan) else []
    moved = f", {bytes_text(memory.paged_bytes)} moved a step" if memory.paged_bytes else ""
    fields += [doc.Field("file", f"{bytes_text(memory.file_bytes)} a rank{moved}")] if memory.file_bytes else []
    figures = doc.Fold("Figures", (doc.table([("category", "bytes at the peak"), *(row[:2] for row in rows)]),))
    table = doc.Only(("terminal",), (doc.Table(("", "", "", ""), tuple(rows)),))
    bars, folded = _categories([(plan.strategy, plan)], used), doc.Only(("html", "markdown"), (figures,))
    title = f"Memory of the fullest rank ({memory.rank}) at the peak"
    return doc.Section(title, (bars, table, doc.Fields(tuple(fields)), folded))


def _categories(plans: Sequence[tuple[str, Prediction]], used: Sequence[Category]) -> doc.Bars:
    """Return the contents of each plan's peak; `used` gives the order of the colours."""
    bars = []
    for name, plan in plans:
        values = tuple(float(plan.memory.at_peak_bytes.get(category, 0)) for category in used)
        bars.append(doc.Bar(name, values, tuple(map(bytes_text, values)), bytes_text(plan.memory.peak_bytes)))
    return doc.Bars("What the peak consists of", tuple(bars), tuple(used), colours_of_memory(used))


def _scaling(points: Sequence[Point], plan: Prediction) -> doc.Section:
    header = ("ranks", "batch", "fits", "memory", "peak in", "sent a step", "step", "tokens/s", "MFU", "scaling")
    rows: Rows = [header]
    invalid = []
    for point in points:
        prediction = point.prediction
        if prediction is None:
            rows.append((f"{point.world_size:,}", "-", "invalid", *["-"] * 7))
            invalid.append(doc.Field("invalid", f"{counted(point.world_size, 'rank')}: {point.problem}"))
            continue
        efficiency = "-" if prediction.time is None else percent_text(prediction.time.scaling_efficiency)
        batch = f"{prediction.global_batch_size:,}"
        rows.append((f"{point.world_size:,}", batch, *_figures(prediction), efficiency))
    note = doc.remark("Each rank does as much as in the planned job, so the global batch grows with the ranks.")
    plots, figures = doc.on_page(*_plots(points, plan)), doc.Fold("Figures", (doc.table(rows),))
    blocks = doc.present(note, plots, figures, doc.Fields(tuple(invalid)) if invalid else None)
    return doc.Section("Over numbers of ranks", blocks)


def _plots(points: Sequence[Point], plan: Prediction) -> list[doc.Block]:
    """Plot memory against the device's limit, and tokens/s on logarithmic axes beside linear scaling of the first."""
    plans = [(float(point.world_size), point.prediction) for point in points if point.prediction is not None]
    speeds = [(ranks, each.time.tokens_per_s) for ranks, each in plans if each.time is not None]
    drawn: list[doc.Block] = []
    if plans:
        memory = [(ranks, float(each.memory.peak_bytes)) for ranks, each in plans]
        device = plan.device_memory_bytes or 0
        up = doc.axis(bytes_text, [0.0, _ROOM * max([*(size for _, size in memory), device])], base=1024)
        limit = (doc.Mark(f"device {bytes_text(device)}", y=float(device)),) if device else ()
        across, curve = _across(memory), _curve(plan.strategy, memory, up)
        label = "Memory per rank over numbers of ranks"
        plot = doc.Plot(label, across, up, (curve,), limit, legend=False, height=260.0)
        drawn.append(doc.Section("Memory per rank", (plot,), 3))
    if speeds:
        (first, speed), *_ = speeds
        ideal = [(ranks, speed * ranks / first) for ranks, _ in speeds]
        up = doc.axis(count_text, [rate for _, rate in speeds + ideal], log=True, room=_ROOM)
        curves = _curve(plan.strategy, speeds, up), _curve("as many times the first", ideal, up, reference=True)
        plot = doc.Plot("Tokens per second over numbers of ranks", _across(speeds), up, curves, height=260.0)
        drawn.append(doc.Section("Tokens per second", (plot,), 3))
    return drawn


def _across(points: Sequence[tuple[float, float]]) -> doc.Axis:
    ranks = [x for x, _ in points]
    return doc.axis(lambda value: f"{value:,.0f}", ranks, log=True, ticks=ranks)


def _curve(name: str, points: Sequence[tuple[float, float]], up: doc.Axis, reference: bool = False) -> doc.Curve:
    dots = tuple(doc.Dot(x, y, f"{name}, {x:,.0f} ranks: {up.text(y)}") for x, y in points)
    return doc.Curve(name, tuple(points), "reference" if reference else 0, dots=dots)


def _comparison(comparison: Comparison, used: Sequence[Category]) -> doc.Section:
    marks = "* the simplest that fits, + the fastest if another; "
    marks += "checkpointing = activation checkpointing of every block, offload = to the host."
    rows: Rows = [("", "strategy", "fits", "memory", "peak in", "sent a step", "step", "tokens/s", "MFU")]
    planned: list[tuple[str, Prediction]] = []
    offloaded: dict[str, list[str]] = {}
    invalid: dict[str, list[str]] = {}
    for row in comparison.rows:
        name, plan = row.variant.name, row.prediction
        mark = "*" if row is comparison.recommended else "+" if row is comparison.fastest else ""
        if plan is None:
            rows.append((mark, name, "invalid", *["-"] * 6))
            invalid.setdefault(str(row.problem), []).append(name)
            continue
        planned.append((name, plan))
        *others, step, speed, mfu = _figures(plan)
        if row.variant.offload and plan.time is not None:  # Copies to and from the host are not included in the time.
            step, speed, mfu = f"> {step}", f"< {speed}", f"< {mfu}"
        rows.append((mark, name, *others, step, speed, mfu))
        if plan.memory.host_bytes:
            offloaded.setdefault(_host(plan), []).append(name)
    remarks = [("invalid", f"{', '.join(names)}: {problem}") for problem, names in invalid.items()]
    remarks += [("host", f"{' and '.join(names)}: {size} in host memory") for size, names in offloaded.items()]
    mesh = next((row.overrides[1:3] for row in comparison.rows if "dp_shard=" in " ".join(row.overrides)), ())
    if mesh:
        remarks.append(("mesh", f"hsdp shards inside a node and replicates across nodes: {' '.join(mesh)}"))
    fields = [doc.Field(label, doc.Span(text, "soft")) for label, text in remarks]
    chosen = [("simplest" if comparison.fastest else "take", comparison.recommended), ("fastest", comparison.fastest)]
    fields += [doc.Field(label, doc.Span(" ".join(row.overrides), "code"), "good") for label, row in chosen if row]
    fields += [doc.Field("why", reason) for reason in comparison.reasons]
    bars, notes = _categories(planned, used) if planned else None, doc.Fields(tuple(fields)) if fields else None
    blocks = doc.present(bars, doc.table(rows), doc.remark(marks), notes)
    return doc.Section("Strategies side by side, the simplest first", blocks)


def _search(search: Search) -> doc.Section:
    rows: Rows = [("", "memory", "step", "bubble", "exposed", "tokens/s", "MFU", "type")]
    for number, layout in enumerate(search.fitting, 1):
        time = layout.prediction.time
        assert time is not None
        _, memory, *_, step, speed, mfu = _figures(layout.prediction)
        waits = percent_text(time.bubble_s / time.step_s), percent_text(time.exposed_s / time.step_s)
        rows.append((f"{number}", memory, step, *waits, speed, mfu, " ".join(layout.overrides)))
    count = f"{search.layouts:,} layouts: {search.too_large:,} too large, {search.too_slow:,} left out as too slow"
    fields = [doc.Field("searched", count), *(doc.Field("why", reason) for reason in search.reasons)]
    blocks = doc.present(doc.table(rows) if search.fitting else None, doc.Fields(tuple(fields)))
    return doc.Section("Layouts that fit, the fastest first", blocks)


def _figures(plan: Prediction) -> tuple[str, ...]:
    """Return fits, memory, region, sent, step, tokens/s, MFU."""
    fits = {True: "yes", False: "no", None: "?"}[plan.fits]
    sent = bytes_text(sum(calls.sent_bytes for calls in plan.traffic))
    timed = ("-", "-", "-")
    if plan.time is not None:
        mfu = "-" if plan.time.mfu is None else percent_text(plan.time.mfu)
        timed = (seconds_text(plan.time.step_s), rate_text(plan.time.tokens_per_s), mfu)
    return fits, bytes_text(plan.memory.peak_bytes), plan.memory.region, sent, *timed


def _traffic(report: PlanReport) -> doc.Section:
    rows: Rows = [("collective", "group", "ranks", "calls", "buffers", "sent", "link")]
    for calls in report.plan.traffic:
        counts = f"{calls.ranks:,}", f"{calls.count:,}", bytes_text(calls.size_bytes), bytes_text(calls.sent_bytes)
        rows.append((calls.op, calls.group, *counts, _LINKS[calls.link]))
    of = f" ({counted(report.local_size, 'rank')} a node)" if report.local_size else ""
    title = f"Communication of one rank per step{of}"
    return doc.Section(title, (doc.table(rows) if len(rows) > 1 else doc.Paragraph("none: there is one rank"),))


def _time(plan: Prediction, time: Time) -> doc.Section:
    hidden = time.communication_s - time.exposed_s
    exposed = 0.0 if time.exposed_s < _NOISE * time.step_s else time.exposed_s
    compute = f"{seconds_text(time.compute_s)}, {seconds_text(time.optimizer_s)} of it clipping and optimizer"
    communication = f"{seconds_text(time.communication_s)}, {seconds_text(exposed)} of it exposed"
    communication += f", {seconds_text(hidden)} hidden" if hidden > _NOISE * time.communication_s else ""
    mfu = "-" if time.mfu is None else percent_text(time.mfu)
    if time.mfu is not None and time.peak_flops is not None:
        mfu += f" of {flops_text(time.peak_flops)} ({_DTYPES.get(time.matmul_dtype, time.matmul_dtype)})"
    waited = f"{seconds_text(time.bubble_s)}, {percent_text(time.bubble_s / time.step_s)} of the step"
    fields = {
        "step": seconds_text(time.step_s),
        "compute": compute,
        "communication": communication,
        "bubble": f"{waited}: the busiest stage waits for the others" if time.bubble_s else "",
        "tokens/s": rate_text(time.tokens_per_s),
        "MFU": mfu,
        "scaling": f"{percent_text(time.scaling_efficiency)} of the speed without communication",
    }
    rows: Rows = [("collective", "group", "algorithm", "calls", "time")]
    for sent in time.transfers:
        rows.append((sent.op, sent.group, sent.algorithm, f"{sent.count:,}", seconds_text(sent.seconds)))
    shown = doc.Fields(tuple(doc.Field(label, text) for label, text in fields.items() if text))
    title = f"Time of one step on {plan.hardware}"
    return doc.Section(title, doc.present(shown, doc.table(rows) if len(rows) > 1 else None))


def _check(check: Check) -> doc.Section:
    """Return whether both engines agree, and both figures where they differ."""
    rows: Rows = [("figure", "closed form", "simulated")]
    for figure in check.differences:
        both = figure.closed_form, figure.simulated
        rows.append((figure.what, *(bytes_text(n) if figure.unit == "bytes" else f"{n:,} calls" for n in both)))
    formula, simulated = check.closed_form.memory.peak_bytes, check.simulated.memory.peak_bytes
    apart = percent_text(abs(formula - simulated) / max(formula, simulated, 1))
    text = f"they agree: {bytes_text(formula)} by formula, {bytes_text(simulated)} simulated"
    text += f" ({apart} apart), the same collectives"
    if check.differences:
        text = "they disagree on the figures below; the simulated engine ran the code itself"
    fields = doc.Fields((doc.Field("check", text, "warn" if check.differences else "good"),))
    blocks = doc.present(fields, doc.table(rows) if check.differences else None)
    return doc.Section("The two engines, both with the CPU's kernels", blocks)


def _largest(solved: Sequence[Largest]) -> doc.Table:
    rows: Rows = [("", "parameters", "memory", "tokens/s", "type")]
    for solution in solved:
        plan = solution.prediction
        if plan is None:
            rows.append((solution.what, "-", "-", "-", "not even the smallest fits"))
            continue
        speed = "-" if plan.time is None else rate_text(plan.time.tokens_per_s)
        figures = count_text(plan.parameters), bytes_text(plan.memory.peak_bytes), speed
        rows.append((solution.what, *figures, " ".join(solution.overrides)))
    return doc.table(rows)


def _trainings(report: PlanReport) -> doc.Section:
    """Return bytes per parameter, and those of the whole model on one rank under each stage of ZeRO."""
    plan = report.plan
    ranks = plan.dp_size or plan.world_size
    states = ("weights", "gradients", "master", "momentum", "variance")
    rows: Rows = [("training", *states, "together", *map("ZeRO-{}".format, STAGES))]
    for training in report.trainings:
        sizes = [getattr(training, state) for state in states] + [training.per_parameter]
        shares = (bytes_text(training.rank_bytes(plan.parameters, stage, ranks)) for stage in STAGES)
        rows.append((training.name, *map(str, sizes), *shares))
    note = (
        "ZeRO-1 shards master, momentum and variance, ZeRO-2 gradients too, ZeRO-3 weights too. dtk keeps the row fp32 "
        "under every precision: its weights are the master, and copies of 16 bits live while they compute."
    )
    title = f"Model states with Adam: bytes per parameter, and of all on one of {counted(ranks, 'data-parallel rank')}"
    return doc.Section(title, (doc.table(rows), doc.remark(note)))
