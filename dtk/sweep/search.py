"""The points of a sweep: a grid by itself, other methods by the `sweeps` package, which only this module imports."""

import itertools
import json
import random
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from dtk.config.overrides import LARGEST_SWEEP
from dtk.errors import DtkError
from dtk.extras import install
from dtk.sweep.file import SweepFile, plain, values

_NO_NUMPY_1 = (3, 13)  # The package asks for numpy below 2, and from this Python on there is none.


@dataclass(frozen=True, slots=True)
class Tried:
    """One point that was run, as input of the search."""

    name: str
    values: dict[str, Any]
    state: str
    """`running`, `finished`, `failed`, or `killed` if it was stopped early."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Logged records, oldest first."""
    summary: dict[str, Any] = field(default_factory=dict)


class Search:
    """Proposes points and decides which runs to stop early; without `package` it is a grid of lists."""

    def __init__(self, file: SweepFile, package: Any) -> None:
        self.file = file
        self._package = package

    def grid(self) -> list[dict[str, Any]]:
        """Return all points of a grid: parameter -> value.

        DtkError if a parameter has infinitely many values. How many points there are was checked with the file.
        """
        if self._package is None:
            return listed_points(self.file) or []
        try:
            suggestions = self._package.next_runs(self.file.content, [], n=LARGEST_SWEEP)
        except ValueError as error:
            raise DtkError(str(self.file.path), str(error), "list its values, or use method: random") from error
        return [_values(run) for run in suggestions if run is not None]

    def propose(self, tried: Sequence[Tried], seed: str) -> dict[str, Any] | None:
        """Return the next point of a random or Bayesian search, or None if there is none.

        The `seed` makes the proposal a deterministic function of `tried`.
        """
        import numpy as np

        # The package draws from both global generators.
        random.seed(seed)
        np.random.seed(random.getrandbits(32))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of numeric libraries, about fits of few points.
            proposed = self._package.next_runs(self.file.content, [self._run(point) for point in tried], n=1)
        return _values(proposed[0]) if proposed and proposed[0] is not None else None

    def ends(self, running: Tried, others: Sequence[Tried]) -> bool:
        """Return whether hyperband stops a run, compared with the others at the same step."""
        runs = [self._run(point) for point in (*others, running)]
        return any(run is runs[-1] for run in self._package.stop_runs(self.file.content, runs))

    def reached(self, tried: Tried) -> bool:
        """Return whether a run has reached the target of the metric, which ends the search."""
        metric = self.file.metric
        if "target" not in metric:
            return False
        values = (record.get(metric["name"]) for record in (*tried.history, tried.summary))
        sign = 1 if metric["goal"] == "maximize" else -1
        return any(sign * value >= sign * metric["target"] for value in values if isinstance(value, int | float))

    def _run(self, tried: Tried) -> Any:
        return self._package.SweepRun(
            name=tried.name,
            config={key: {"value": value} for key, value in tried.values.items()},
            state=self._package.RunState(tried.state),
            history=tried.history,
            summary_metrics=tried.summary,
        )


def listed_points(file: SweepFile) -> list[dict[str, Any]] | None:
    """Return every combination of a grid whose parameters list their values or count whole numbers; None for others.

    The last parameter changes fastest, as in W&B's grids; a value that comes twice counts once.
    """
    choices: list[list[Any]] = []
    for space in file.parameters.values():
        listed: list[Any]
        if space.keys() in ({"value"}, {"values"}):
            listed = values(space)
        elif space.keys() == {"min", "max"} and all(isinstance(end, int) for end in space.values()):
            listed = list(range(space["min"], space["max"] + 1))
        else:
            return None
        choices.append([value for i, value in enumerate(listed) if value not in listed[:i]])
    return [dict(zip(file.parameters, point, strict=True)) for point in itertools.product(*choices)]


def load(file: SweepFile) -> Search:
    """Load the search of a file after checking the file against the package's schema, which is W&B's.

    DtkError if it needs the extra, which is not installed, or the file is no valid sweep.
    """
    if find_spec("sweeps") is None:
        if file.method == "grid" and not file.stops_early and listed_points(file) is not None:
            return Search(file, None)
        why = "its extra does not support Python 3.13 and newer" if sys.version_info >= _NO_NUMPY_1 else ""
        fix = "docs/sweeps.md says how to install it there" if why else f"install it: {install('sweeps')}"
        raise DtkError("this sweep needs the search of the package sweeps; a grid of lists does not", why, fix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of pydantic, about the package's own code.
        import sweeps
    search = Search(file, sweeps)
    try:
        wrong = sweeps.schema_violations_from_proposed_config(json.loads(json.dumps(file.content)))
    except (ValueError, TypeError) as error:
        wrong = [str(error)]
    if wrong:
        raise DtkError(f"{file.path} is not a valid W&B sweep", str(wrong[0])[:300])
    return search


def _values(run: Any) -> dict[str, Any]:
    return {str(key): plain(entry["value"]) for key, entry in run.config.items()}
