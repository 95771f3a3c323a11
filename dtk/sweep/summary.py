"""The summary at the end of a sweep: unfinished points, the comparison, the next commands."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.files import open_regular
from diagnostics.contract.formatting import counted, typed
from diagnostics.report import document as doc
from diagnostics.runs.records import as_mapping, mapping, objects
from dtk.console.output import print_line, put, rendered
from dtk.launch.stopping import STOPPED
from dtk.sweep.folder import DONE, STOPPED_EARLY, Sweep, Trial
from dtk.sweep.search import Tried

MOST_BYTES = 32 * 1024 * 1024  # Maximum bytes of metrics.jsonl; the rest of a longer file is ignored.
COMPARED = ("multirun", "grid")
"""Other searches look for what learns best; which of their points is faster is another question."""
_MOST_RANKED = 20  # Chosen: one screen; further points are only counted.
_STATES = {"finished": "finished", "running": "running", STOPPED_EARLY: "killed", "preempted": "preempted"}


def tried(sweep: Sweep, but: Trial | None = None) -> list[Tried]:
    """Return every point with what its last run (other than `but`) recorded, in the order of the points."""
    lasts = ((point, sweep.last(point.index, 0)) for point in sweep.points)
    return [look(trial, point.values) for point, trial in lasts if trial is not None and trial is not but]


def look(trial: Trial, values: dict[str, Any]) -> Tried:
    """Return a run's current state: complete records of metrics.jsonl and values of summary.json, numbers only."""
    history: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    if trial.run is not None:
        paths = RunPaths(trial.run)
        with suppress(OSError), open_regular(paths.metrics) as file:
            history = [_numbers(record) for record in objects(file.read(MOST_BYTES).split(b"\n"))]
        figures = as_mapping(mapping(str(paths.summary), []).get("figures"))
    return Tried(f"{trial.point}", values, _STATES.get(trial.state, "failed"), history, _numbers(figures))


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {str(k): v for k, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def print_ending(sweep: Sweep, code: int, again: str, total: int, metric: dict[str, Any] | None = None) -> None:
    """Print how the sweep ended, the points ranked by the metric if there is one, and the comparison of its runs."""
    last = last_trials(sweep)
    names = {point.index: point.name for point in sweep.points}
    done = [trial for trial in last if trial.state in DONE]
    print_line(f"\nsweep {sweep.about.id}: {len(done)} of {counted(total, 'run')} done")
    for trial in last:
        if trial.state not in DONE:
            where = f" ({typed(trial.run)})" if trial.run else ""
            repeat = f", repeat {trial.repeat + 1}" if sweep.about.repeats > 1 else ""
            what = "out of memory" if trial.state == "oom" else trial.state
            why = f": {trial.reason}" if trial.reason else ""
            print_line(f"  {names.get(trial.point, '')}{repeat}: {what}{why}{where}")
    if total > len(last):
        print_line(f"  {counted(total - len(last), 'run')} not started")
    if queued := sum(trial.state == "queued" for trial in last):
        print_line(f"  {counted(queued, 'run')} submitted; compare them when they are done")
    if metric:
        _rank(sweep, metric)
    if sweep.about.method in COMPARED and (compared := comparison(last)) is not None:
        print_line()
        put(rendered(compared))
    composed = {point.index for point in sweep.points if point.config}
    if code in STOPPED or any(trial.state not in DONE and trial.point in composed for trial in last):
        print_line(f"to continue with the remaining runs: {again}")
    print_line(f"points and their runs: {typed(sweep.root)}")


def _rank(sweep: Sweep, metric: dict[str, Any]) -> None:
    """Print the points, best first, each by the best figure of its runs: the final one, else the last one logged."""
    name, sign = metric["name"], -1 if metric["goal"] == "maximize" else 1
    ranked: list[tuple[float, str, str]] = []
    last = last_trials(sweep)
    for point in sweep.points:
        trials = [trial for trial in last if trial.point == point.index]
        figures = []
        for recorded in (look(trial, {}) for trial in trials):
            logged = [record[name] for record in recorded.history if name in record]
            values = (recorded.summary.get(name), *logged[-1:])
            figures += [float(value) for value in values if value is not None and value == value][:1]
        if figures:
            states = ", ".join(sorted({trial.state for trial in trials} - {"finished"}))
            ranked.append((min(figures, key=lambda figure: sign * figure), point.name or "unchanged", states))
    ranked.sort(key=lambda row: sign * row[0])
    if ranked:
        print_line(f"\nby {name} ({metric['goal']}), best first")
        rows = [(f"{value:.6g}", point, states) for value, point, states in ranked[:_MOST_RANKED]]
        put(rendered(doc.Document("", "", (doc.table([(name, "point", "unfinished"), *rows]),))))
    if len(ranked) > _MOST_RANKED:
        print_line(f"  and {counted(len(ranked) - _MOST_RANKED, 'point')} more")


def last_trials(sweep: Sweep) -> list[Trial]:
    """Return the newest run of every point and repeat, ordered by point."""
    keys = sorted({(trial.point, trial.repeat) for trial in sweep.trials})
    return [trial for key in keys if (trial := sweep.last(*key)) is not None]


def comparison(trials: Sequence[Trial]) -> doc.Document | None:
    """Return what `dtk compare` shows of the runs that came to an end; None for fewer than two, or incomparable ones.

    Failed runs are included: that one needs too much memory is a result.
    """
    if len({trial.point for trial in trials if trial.state == "finished"}) < 2:
        return None
    runs = [trial.run for trial in trials if trial.run is not None and trial.state in ("finished", "oom", "failed")]
    from dtk.compare.compare import compare
    from dtk.compare.report import document

    try:
        return document(compare(runs))
    except DiagnosticsError as error:  # One damaged folder must not hide the summary and how to continue.
        print_line(f"not compared: {error}")
        return None
