"""dtk as a library, for scripts and notebooks: compose, plan, run and diagnose, with typed results.

    from dtk import experiment

    job = ("strategy=fsdp", "model=gpt2_tiny", "train.steps=20")
    result = experiment.run(*job)
    print(result.summary["loss"], experiment.diagnose(result.folder).outcome)

Overrides are those of the commands. Invalid ones raise `DtkError`, whose text contains the fix.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.runs.find import Details, read_details
from diagnostics.runs.records import objects
from dtk.errors import DtkError
from dtk.extras import load, require_training

if TYPE_CHECKING:
    from diagnostics.report.model import Report
    from dtk.config.compose import Composed
    from dtk.plan.model import PlanReport

__all__ = ["DtkError", "RunResult", "compose", "diagnose", "plan", "run"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that has ended, and its results."""

    folder: Path
    exit_code: int
    """0: finished; 1: a rank failed; 129, 130 or 143: stopped by a signal, with a checkpoint."""
    details: Details
    """Everything that `dtk show` prints."""

    @property
    def state(self) -> str:
        """The state in status.json: `finished`, `failed`, `hung`, `oom` or `preempted`."""
        return self.details.run.state

    @property
    def summary(self) -> dict[str, Any]:
        """Contents of summary.json: losses, tokens per second, peak memory in bytes; empty if it did not finish."""
        return self.details.summary

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the records of metrics.jsonl: steps, with `loss`, and evaluations, with `validation_loss`."""
        path = RunPaths(self.folder).metrics
        if path.exists():
            with path.open("rb") as lines:
                yield from objects(lines)


def compose(*overrides: str, config_dir: Path | None = None) -> "Composed":
    """Return the configuration of a run: typed as `.config`, plain as `.plain`.

    `overrides` are in Hydra's grammar: `strategy=ddp`, `train.steps=5`. The YAML files of the folder `config_dir`
    override dtk's of the same group and name. DtkError if a key, a value or a YAML file is wrong.
    """
    require_training("dtk.experiment.compose needs")
    from dtk.config.compose import compose as composed

    return composed(list(overrides), config_dir, traced=True)


def plan(*overrides: str, config_dir: Path | None = None, world_sizes: tuple[int, ...] = ()) -> "PlanReport":
    """Predict a run before it is started: memory per rank, messages, step time. Needs no GPU and no data.

    The arguments are those of `compose`, also `hardware=NAME`; `world_sizes` are further numbers of ranks to predict
    for. DtkError if the job or the hardware cannot be used.
    """
    require_training("dtk.experiment.plan needs")
    load("torch")
    from dtk.plan.make import Request, make

    sizes = ",".join(map(str, world_sizes)) or None
    return make(Request(overrides=overrides, config_dir=config_dir, world_size=sizes))


def run(*overrides: str, config_dir: Path | None = None, check: bool = True) -> RunResult:
    """Run a job on this machine to its end, as `dtk run` does, with one process per rank.

    The arguments are those of `compose`. DtkError if the job cannot be started and, with `check`, if it did not finish.
    """
    require_training("dtk.experiment.run needs")
    load("torch")
    from dtk.config.placement import is_remote
    from dtk.launch.prepare import compose_point, place_point
    from dtk.start.point import run_point

    point = compose_point(list(overrides), config_dir)
    if is_remote(point.composed.config.launcher):
        raise DtkError("dtk.experiment.run waits for the end of a run", "this launcher submits it", "use dtk run")
    folders: list[RunPaths] = []
    exit_code = run_point(*place_point(point), folders.append)
    if not folders:
        raise DtkError("the job was not started", "preflight found that it would hang; its report is above")
    result = RunResult(folders[0].root, exit_code, read_details(folders[0].root))
    if check and exit_code != 0:
        raise DtkError(f"the run ended as {result.state}", str(result.folder), f"dtk diagnose {result.folder}")
    return result


def diagnose(path: Path | str) -> "Report":
    """Diagnose a run folder, or the output of any PyTorch job: outcome, root causes, fault tree.

    DiagnosticsError if there is no evidence at `path`, a folder or a file.
    """
    from diagnostics.diagnose import diagnose as explained

    return explained(Path(path))
