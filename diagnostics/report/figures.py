"""The headline figures, side by side at the top of a page, whether or not a cause was found."""

from diagnostics.contract.formatting import bytes_text, seconds_text
from diagnostics.report import document as doc, measures
from diagnostics.report.measures import share_text
from diagnostics.report.model import Report
from diagnostics.tree.outcome import account_of


def figures(report: Report) -> doc.Cards | None:
    """Return the recorded figures of speed, step time and memory; None if there are none."""
    run, account = measures.run_figures(report.measures), account_of(report.measures)
    step = measures.breakdown(report.measures)
    cards: list[doc.Card] = []

    def add(figure: str, caption: str) -> None:
        cards.append(doc.Card(figure, (doc.Span(caption, "soft"),)))

    if run.tokens_per_s is not None:
        add(f"{run.tokens_per_s:,.0f}", f"{run.speed_unit[:20]}s/s, all ranks")
    if run.step_time_s is not None:
        add(seconds_text(run.step_time_s), "per step, median")
    if account is not None and account.overlap is not None:
        add(f"{account.overlap:.0%}", "of the communication overlaps compute")
    if step is not None and account is not None:
        add(seconds_text(step.exposed_ms / 1e3), "exposed communication per step, mean over ranks")
        add(f"{account.idle:.0%}", "of the step without any operation")
    if peaks := measures.comparable(measures.memory(report.measures)):
        fullest = max(peaks, key=lambda rank: peaks[rank].peak_bytes)
        peak_bytes, over_time = peaks[fullest].peak_bytes, peaks[fullest].over_time
        capacity = over_time.capacity_bytes if over_time is not None else run.device_memory_bytes
        of = f" of {bytes_text(capacity)}{share_text(peak_bytes, capacity)}" if capacity else ""
        what = measures.of_what(over_time)
        add(bytes_text(peak_bytes), f"peak of {what}{of}, {peaks[fullest].name(fullest)}")
    elif run.peak_memory_bytes is not None:
        add(bytes_text(run.peak_memory_bytes), "peak memory of rank 0")
    if run.mfu is not None:
        add(f"{run.mfu:.1%}", "MFU")
    return doc.Cards(tuple(cards)) if cards else None
