"""The pages of `dtk ui` as documents: all runs, and one run. Reads run folders only."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import age, bytes_text, command, counted, region_text, seconds_text
from diagnostics.report import document as doc
from diagnostics.report.measures import Breakdown
from diagnostics.report.runs import COLUMNS, cells_of
from diagnostics.runs.find import FAILED, list_runs, looks_like_run, read_details
from diagnostics.runs.records import mapping, planned_and_measured, read_origins
from dtk.compare.report import where_a_step_goes
from dtk.compare.statistics import number_text
from dtk.errors import DtkError, refused
from dtk.plan.formulas.prediction import Prediction
from dtk.plan.model import PlanReport
from dtk.plan.report import document as plan_document
from dtk.record.metrics import BOOKKEEPING
from dtk.runs.find import SORTS
from dtk.ui.live import MOST_MARKS, RankNow, curves, ranks, step_parts, sweeps, tags

PAGE_ROWS = 200  # Runs per page: a browser lays out this many rows without delay.
DENSE_RANKS = 64  # With more ranks each has a cell instead of a row.
CELLS = 32  # Ranks in a row of cells: four nodes of eight.
QUIET_S = 30.0
"""A running rank without a heartbeat for this long is marked. The default watch waits longer before it probes;
checkpoints and evaluations send heartbeats."""
FIRST: dict[str, str] = table_beside(__file__)
"""Titles of the curves that are shown first, in order; others are in a collapsed section."""
NOT_UTF8 = "surrogateescape"  # As Python holds names of files whose bytes are no UTF-8.
_COLOURS = {"bad": "h5", "warn": "k8", "good": "h0", "": "h0"}  # Of cells, by tone.
_NO_HEADLINE = ("grad_norm", "lr")  # Metrics whose curve matters, not their last value.
_TONES: dict[str, doc.Tone] = {"finished": "good", "running": "strong", "queued": "soft", "preempted": "warn"}


def link(text: str, path: str, **query: object) -> doc.Span:
    """Return a link to another page of the server."""
    given = urlencode({name: value for name, value in query.items() if value not in (None, "")}, errors=NOT_UTF8)
    return doc.Span(text, href=f"{path}?{given}" if given else path)


def run_path(identity: str) -> str:
    """Return the address of a run's page."""
    return f"/run/{quote(identity, safe='', errors=NOT_UTF8)}"


def find(folder: Path, identity: str) -> Path:
    """Return a run's folder; DtkError if the folder has no run with this name, or the name leads outside of it."""
    path = folder / identity
    with suppress(OSError, ValueError):
        if path.resolve().parent == folder.resolve() and path.is_dir() and looks_like_run(path):
            return path
    raise DtkError(f"there is no run {identity} in {folder}", fix="the first page lists the runs")


def runs_page(folder: Path, query: Mapping[str, str]) -> doc.Document:
    """Return the page of all runs in a folder.

    The query may have `q` (words that the name or state of a run must hold), `tag`, `sweep`, `sort` (a key of `SORTS`),
    `reverse` and `page`. DtkError if the folder cannot be read.
    """
    with refused(f"cannot list {folder}"):
        every = list_runs(folder) if folder.exists() else []
    words = query.get("q", "").lower().split()
    runs = [run for run in every if all(word in f"{run.id} {run.state}".lower() for word in words)]
    marked = {"tag": tags(every), "sweep": sweeps(folder)}
    for kind, members in marked.items():
        if selected := query.get(kind):
            runs = [run for run in runs if run.id in members.get(selected, ())]
    if (key := query.get("sort", "age")) in SORTS and key != "age":
        runs.sort(key=SORTS[key])
    if query.get("reverse"):
        runs.reverse()
    pages = max(1, -(-len(runs) // PAGE_ROWS))
    number = min(max(1, int(text) if (text := query.get("page", "1")).isdecimal() and len(text) < 9 else 1), pages)
    chosen = {name: query.get(name) for name in ("q", "tag", "sweep")}
    states = Counter(run.state for run in every)
    filters = [
        piece
        for state, n in states.most_common()
        for text, to in [(f"[{n:,} {state}]", None) if chosen["q"] == state else (f"{n:,} {state}", state)]
        for piece in (link(text, "/", **{**chosen, "q": to}), "  ")
    ]
    marks = [doc.Paragraph((f"{kind}s: ", *_filters(kind, of, chosen))) for kind, of in marked.items() if of]
    rows: list[tuple[doc.Text | doc.Cell, ...]] = []
    for run in runs[PAGE_ROWS * (number - 1) : PAGE_ROWS * number]:
        state = doc.Cell(run.state, hint="; ".join(run.problems), tone=_tone(run.state))
        rows.append((link(run.id, run_path(run.id)), state, *cells_of(run)[2:]))
    query_now = {**chosen, **{name: query.get(name) for name in ("sort", "reverse")}}
    turns = [
        piece
        for name, to in (("newer", number - 1), ("older", number + 1))
        if 1 <= to <= pages
        for piece in (link(name, "/", **query_now, page=to), "  ")
    ]
    empty = "no run matches" if every else f"no runs yet; make one: {command('run', 'experiment=smoke')}"
    table = doc.Table(COLUMNS, tuple(rows), names=2) if rows else doc.Paragraph(empty)
    pager = doc.Paragraph((*turns, doc.Span(f"page {number} of {pages}", "soft"))) if pages > 1 else None
    return doc.Document(
        title=f"dtk: {counted(len(every), 'run')}",
        answer=f"{counted(len(every), 'run')} in {folder}",
        lead=(doc.Paragraph((*filters, link("all", "/"))), *marks),
        blocks=(doc.Section(counted(len(runs), "run"), doc.present(table, pager), id="runs"),),
        footer="Newest first. Click a heading to sort; tick runs to compare them.",
    )


def _filters(kind: str, members: Mapping[str, Set[str]], chosen: Mapping[str, str | None]) -> Iterator[doc.Span | str]:
    """Yield a link for each tag or sweep that keeps the other filters; clicking it again removes it."""
    for name, runs in list(members.items())[:MOST_MARKS]:
        is_on = chosen[kind] == name
        text = f"{name} ({len(runs):,})"
        yield link(f"[{text}]" if is_on else text, "/", **{**chosen, kind: None if is_on else name})
        yield "  "


def _tone(state: str) -> doc.Tone:
    return "bad" if state in FAILED else _TONES.get(state, "warn")


def run_page(folder: Path, identity: str) -> doc.Document:
    """Return the page of one run in its current state; DtkError if there is no such run."""
    path = find(folder, identity)
    details, paths = read_details(path), RunPaths(path)
    run, status, drawn, step = details.run, details.status, curves(paths.metrics), step_parts(paths)
    failure = status.failure if status else None
    where, live = run_path(identity), run.state == "running"
    figures = details.summary if run.state == "finished" else {**details.summary, **details.last_metrics}
    lead = [doc.Field("overrides", doc.Span(" ".join(details.overrides) or "nothing", "code"))]
    if failure is not None:
        who = f"rank {failure.rank}: " if failure.rank >= 0 else ""
        lead.append(doc.Field("failure", doc.Span(f"{who}{failure.reason}", "bad")))
    elif status is not None and status.reason:
        lead.append(doc.Field("reason", str(status.reason)))
    lead += [doc.Field("problem", doc.Span(problem, "warn")) for problem in run.problems]
    if step is None:
        traced = any((path / "traces").glob("rank_*"))
        how = "the traces are being read" if traced else _no_trace(paths)
        lead.append(doc.Field("exposed communication", doc.Span(how, "soft")))
    if figures.get("mfu_reason") and figures.get("mfu") is None:
        lead.append(doc.Field("MFU", doc.Span(f"not available: {figures['mfu_reason']}", "soft")))
    lead.append(doc.Field("terminal", doc.Span(command("diagnose", path), "code")))
    summary = tuple(doc.Field(name, _text(name, value)) for name, value in details.summary.items() if value is not None)
    actions = (link("All runs", "/"), "  ", link("Diagnose", f"{where}/diagnosis"), "  ", link("Plan", f"{where}/plan"))
    return doc.Document(
        title=f"{run.state}: {identity}",
        answer=identity,
        heading=identity,
        badge=(run.state, _tone(run.state)),
        lead=doc.present(doc.Paragraph(actions), _strip({"step": run.step, **figures}, step), doc.Fields(tuple(lead))),
        blocks=doc.present(
            _training(drawn),
            _ranks(ranks(paths, time.time(), live=live), live=live),
            where_a_step_goes({"a step": [step]}) if step is not None else None,
            _planned(paths, figures),
            doc.Section("All figures", (doc.Fold("summary.json", (doc.Fields(summary),)),)) if summary else None,
        ),
    )


def plan_page(folder: Path, identity: str) -> doc.Document:
    """Return the page of a run's plan; DtkError if there is no such run, or no plan of it."""
    path = find(folder, identity)
    try:
        plan = msgspec.convert(mapping(str(RunPaths(path).plan), []), Prediction)
    except ValueError as error:
        why = "the formulas do not know its model, or it is of another version"
        raise DtkError(f"{identity} has no plan", why) from error
    job = tuple(read_details(path).overrides)
    page = plan_document(PlanReport(job=job, plan=plan, local_size=0, compute_dtype=""))
    back = doc.Paragraph((link("All runs", "/"), "  ", link(identity, run_path(identity))))
    return replace(page, lead=(back, *page.lead))


def _strip(figures: Mapping[str, Any], step: Breakdown | None) -> doc.Cards | None:
    names = ("step", *(name for name in FIRST if name not in _NO_HEADLINE))
    texts = {name: _text(name, value) for name in names if (value := figures.get(name)) is not None}
    cards = [doc.Card(text, (doc.Span(_title(name), "soft"),)) for name, text in texts.items()]
    if step is not None:
        caption = f"exposed communication per step, {step.exposed_ms / (step.wall_ms or 1):.0%} of it"
        cards.append(doc.Card(seconds_text(step.exposed_ms / 1e3), (doc.Span(caption, "soft"),)))
    return doc.Cards(tuple(cards)) if cards else None


def _title(name: str) -> str:
    return FIRST.get(name, name.replace("_", " "))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    if "bytes" in name.split("_"):
        return bytes_text(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return seconds_text(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 else number_text(value)


def _training(drawn: Mapping[str, Sequence[tuple[float, float]]]) -> doc.Section | None:
    usable = {name: points for name, points in drawn.items() if name not in BOOKKEEPING and len(points) > 1}
    if not usable:
        return None
    others = sorted(usable.keys() - set(FIRST))
    charts = [_chart(name, usable[name], is_open=True) for name in FIRST if name in usable]
    return doc.Section(
        "Training", doc.present(charts, (_chart(name, usable[name], is_open=False) for name in others)), id="training"
    )


def _chart(name: str, points: Sequence[tuple[float, float]], *, is_open: bool) -> doc.Fold:
    steps, values = [x for x, _ in points], [y for _, y in points]
    ticks = [step for step in doc.round_values(steps[0], steps[-1], 4) if step.is_integer()]
    across = doc.axis(lambda step: f"{step:,.0f}", steps, ticks=ticks)
    base = 1024.0 if "bytes" in name.split("_") else 10.0
    up = doc.axis(lambda value: _text(name, value), values, room=1.08, base=base)
    if min(values) >= 0:
        up = replace(up, low=max(0.0, up.low))
    curve = doc.Curve(name, tuple(points))
    plot = doc.Plot(f"{name} over steps", across, up, (curve,), legend=False, height=170.0)
    return doc.Fold(f"{_title(name)}: {_text(name, values[-1])}", (plot,), is_open)


def _no_trace(paths: RunPaths) -> str:
    with suppress(OSError, ValueError):
        values = read_origins(paths.origins).values
        if values.get("record.level") == "full":
            return f"no trace: the profiled steps begin at step {values.get('record.profile_start')}"
    return "no trace; record=full profiles some steps"


def _ranks(present: Sequence[RankNow], *, live: bool) -> doc.Section | None:
    """Return the place of each rank: one row each, or one cell each if there are many."""
    if not present:
        return None
    newest = max((rank.step or 0 for rank in present), default=0)

    def tone(rank: RankNow) -> doc.Tone:
        if not live:
            return "" if rank.region == "end" else "warn"
        return "bad" if rank.quiet_s >= QUIET_S else "warn" if (rank.step or 0) < newest else "good"

    def words(rank: RankNow) -> str:
        inside = f", inside {rank.call}" if rank.call else ""
        where = f"step {rank.step}, in {region_text(rank.region) or 'no region'}{inside}"
        return f"rank {rank.rank}, {where}, heartbeat {age(rank.quiet_s)} ago"

    def table(of: Sequence[RankNow]) -> doc.Table:
        rows = tuple(
            (
                f"{rank.rank}", "-" if rank.step is None else f"{rank.step:,}", region_text(rank.region) or "-",
                doc.Cell(f"{age(rank.quiet_s)} ago", tone=tone(rank)), rank.call or "-",
            )
            for rank in of
        )  # fmt: skip
        return doc.Table(("rank", "step", "region", "heartbeat", "inside"), rows, names=5)

    if len(present) <= DENSE_RANKS:
        return doc.Section("Ranks", (table(present),), id="ranks")
    lines = []
    for place, members in groupby(present, key=lambda rank: rank.rank // CELLS):
        by_cell = {rank.rank % CELLS: rank for rank in members}
        seen = {n: (_COLOURS[tone(rank)], words(rank)) for n, rank in by_cell.items()}
        lost = {n: ("none", f"rank {place * CELLS + n} left no heartbeat") for n in range(CELLS)}
        steps = sorted({rank.step or 0 for rank in by_cell.values()})
        cells = tuple(doc.Stretch(n, n + 1, *cell) for n, cell in (lost | seen).items())
        span = " to ".join(f"{step:,}" for step in sorted({steps[0], steps[-1]}))
        lines.append((str(place * CELLS), cells, f"step {span}"))
    marked = (
        f"Red: no heartbeat for {QUIET_S:.0f} s; yellow: a step behind" if live else "Yellow: it did not reach the end"
    )
    note = f"Each cell is a rank. {marked}; empty: no heartbeat."
    late = [rank for rank in present if live and tone(rank) != "good"][:CELLS]
    drawing = doc.Tracks("Ranks", tuple(lines), CELLS)
    return doc.Section("Ranks", doc.present(table(late) if late else None, doc.remark(note), drawing), id="ranks")


def _planned(paths: RunPaths, figures: Mapping[str, Any]) -> doc.Section | None:
    rows = [
        (title, _text(name, planned), "-" if measured is None else _text(name, measured))
        for title, name, planned, measured in planned_and_measured(mapping(str(paths.plan), []), figures)
    ]
    note = doc.remark("Memory is planned for tensors; on a CPU the whole process is measured.")
    table = doc.Table(("figure", "planned", "measured"), tuple(rows), names=1)
    return doc.Section("Plan and actual", doc.present(table, note)) if rows else None
