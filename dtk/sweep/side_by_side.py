"""A W&B report with the runs of a sweep side by side, written by W&B's own library and stored by its server."""

from typing import Any

from diagnostics.report import markdown
from dtk.config.overrides import parse
from dtk.errors import DtkError
from dtk.extras import require
from dtk.sweep.folder import Sweep
from dtk.sweep.summary import comparison, last_trials

CURVES = ("loss", "validation_loss", "tokens_per_s")
BARS = ("tokens_per_s", "step_time_s", "peak_memory_bytes", "communicated_bytes_per_step")


def save(sweep: Sweep, project: str, entity: str | None, axis: str) -> str:
    """Save the report and return its address: the comparison as text, curves, final figures, and what differs; DtkError
    if the library is not installed, or the server rejected the report.
    """
    require("wandb_workspaces", "a report of W&B", "wandb-reports")
    import wandb
    from wandb_workspaces.reports import v2 as reports

    trials = last_trials(sweep)
    names = [trial.run.name for trial in trials if trial.run is not None]
    compared = comparison(trials)
    text = markdown.render(compared) if compared is not None else f"# {sweep.about.id}\n"
    panels: list[Any] = [reports.LinePlot(title=name, x=axis, y=[name]) for name in CURVES]
    panels += [reports.BarPlot(title=name, metrics=[reports.SummaryMetric(name)]) for name in BARS]
    panels.append(reports.RunComparer(diff_only="split"))
    try:
        place = {"project": project, "entity": entity or wandb.Api().default_entity}
        runs = reports.Runset(**place, name=sweep.about.id, filters=f"Name in {names}", groupby=_varied(sweep))
        blocks = [reports.MarkdownBlock(text), reports.PanelGrid(runsets=[runs], panels=panels)]
        report = reports.Report(**place, title=f"{sweep.about.id}: side by side", blocks=blocks, width="fluid")
        return str(report.save().url)
    except Exception as error:  # The library raises its own, those of the server and of the network alike.
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise DtkError("W&B did not accept the report", why, "try again; the runs are there") from error


def _varied(sweep: Sweep) -> list[str]:
    """Return the keys that distinguish the points, as W&B names them, if each point has several runs to group."""
    if sweep.about.repeats == 1:
        return []
    keys = dict.fromkeys(parse(word).key_or_group for point in sweep.points for word in point.name.split())
    return [
        f"config.{key}.name" if isinstance(sweep.points[0].config.get(key), dict) else f"config.{key}" for key in keys
    ]
