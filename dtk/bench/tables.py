"""The cells of every table of the report, as text. Both the terminal and the page are made from these."""

from collections.abc import Sequence

from diagnostics.analysis.statistics import Estimate
from diagnostics.contract.formatting import bytes_text, counted
from dtk.bench.bandwidth import OPERATIONS
from dtk.bench.model import BenchReport, Result
from dtk.plan.formatting import seconds_text

Rows = list[tuple[str, ...]]


def title(report: BenchReport) -> str:
    """`5 operations over gloo, 2 ranks on cpu (x86_64), float32`"""
    names = {result.operation for result in report.results}
    device = str(report.about.get("device", ""))
    on = f"{report.device} ({device})" if device else report.device
    return (
        f"{counted(len(names), 'operation')} over {report.backend}, {counted(report.world_size, 'rank')} on {on}, "
        f"{report.dtype}"
    )


def best(report: BenchReport) -> list[str]:
    """Of every operation and side where its bus bandwidth is highest."""
    told = []
    for side in report.sides:
        for operation in OPERATIONS:
            found = [one for one in report.results if one.operation == operation and one.side == side.name]
            if not found:
                continue
            top = max(found, key=lambda one: one.busbw(report.world_size).median)
            under = f" under {side.name}" if len(report.sides) > 1 else ""
            rate = figure(top.busbw(report.world_size).median)
            told.append(f"{operation}{under}: {rate} GB/s bus bandwidth at {bytes_text(top.size_bytes)}")
    return told


def results(report: BenchReport) -> Rows:
    """As nccl-tests list them, with intervals."""
    several = len(report.sides) > 1
    heading = (
        "operation",
        "size",
        "count",
        "calls",
        "time",
        "interval",
        "algbw GB/s",
        "busbw GB/s",
        "interval",
        "wrong",
    )
    rows: Rows = [(*(("preset",) if several else ()), *heading)]
    return rows + [(*((one.side,) if several else ()), *_result(one, report.world_size)) for one in report.results]


def gains(report: BenchReport) -> Rows:
    """The second preset over the first."""
    first, second = (side.name for side in report.sides)
    at = {(one.side, one.operation, one.size_bytes): one for one in report.results}
    rows: Rows = [("operation", "size", f"{first} GB/s", f"{second} GB/s", "ratio", "interval", f"{second} is")]
    for one in report.gains:
        rates = (
            figure(at[name, one.operation, one.size_bytes].busbw(report.world_size).median) for name in (first, second)
        )
        ratio = f"{one.ratio.median:.3f}"
        rows.append((one.operation, bytes_text(one.size_bytes), *rates, ratio, span(one.ratio, 3), one.told))
    return rows


def verdict(report: BenchReport) -> str:
    """Of a comparison of two presets, in one sentence."""
    second, cells = report.sides[1].name, len(report.gains)
    faster = sum(one.told == "faster" for one in report.gains)
    slower = sum(one.told == "slower" for one in report.gains)
    if not cells:
        return "nothing was measured under both presets"
    if not faster and not slower:
        return f"no gain that can be told from noise: {second} over {report.sides[0].name}, {counted(cells, 'size')}"
    return (
        f"{second} over {report.sides[0].name}: faster at {faster}, slower at {slower}, "
        f"not told from noise at {cells - faster - slower} of {counted(cells, 'size')}"
    )


def left_out(report: BenchReport) -> list[tuple[str, str]]:
    """Operation and from where on, with the reason."""
    return [
        (str(one["operation"]), f"not from {bytes_text(one['size_bytes'])} on: {one['reason']}")
        for one in report.left_out
    ]


def span(value: Estimate, digits: int | None = None) -> str:
    """`0.98 - 1.02`, or `-` where one figure is all there is."""
    if value.low is None or value.high is None:
        return "-"
    low, high = (figure(bound) if digits is None else f"{bound:.{digits}f}" for bound in (value.low, value.high))
    return f"{low} - {high}"


def figure(value: float) -> str:
    """GB/s to three digits."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _result(one: Result, world_size: int) -> tuple[str, ...]:
    low, high = one.time_s.low, one.time_s.high
    times = "-" if low is None or high is None else f"{seconds_text(low)} - {seconds_text(high)}"
    wrong = "not verified" if one.wrong_elements is None else f"{one.wrong_elements:,}"
    busbw = one.busbw(world_size)
    return (
        one.operation,
        bytes_text(one.size_bytes),
        f"{one.count:,}",
        str(one.calls),
        seconds_text(one.time_s.median),
        times,
        figure(one.algbw().median),
        figure(busbw.median),
        span(busbw),
        wrong,
    )


def sides(report: BenchReport) -> list[tuple[str, str]]:
    """Each preset and the variables that it set, as the ranks saw them."""
    return [
        (side.name, " ".join(f"{name}={value}" for name, value in side.effective.items()) or "sets no variable")
        for side in report.sides
        if len(report.sides) > 1 or side.variables
    ]


def numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Whether a column holds figures, and so is flush right."""
    return len(rows) > 1 and all(row[column][:1].isdigit() or row[column] == "-" for row in rows[1:])
