"""Finds the detectors: the built-in packages and a user's own (entry point `dtk.detectors`). Runs none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from diagnostics.contract.findings import Detector
from diagnostics.evidence.model import Problem

PACKAGES = ("hang", "memory", "overlap", "environment", "numerics")
"""Below `diagnostics.detectors`; each exposes `DETECTORS`."""
ENTRY_POINTS = "dtk.detectors"


@dataclass(slots=True)
class Registry:
    """Detectors in the order they run, and those that could not be had."""

    detectors: list[Detector] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def causes(self) -> set[str]:
        """Every id that some detector decides."""
        return {cause for detector in self.detectors for cause in detector.causes}


def collect() -> Registry:
    """All detectors. One that cannot be imported is a problem under coverage, never an error."""
    registry = Registry()
    for name in PACKAGES:
        try:
            registry.detectors += import_module(f"diagnostics.detectors.{name}").DETECTORS
        except Exception as error:
            registry.problems.append(Problem("detector", f"diagnostics.detectors.{name}", _told(error)))
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda one: one.name):
        registry.detectors.extend(_loaded(entry, registry.problems))
    return registry


def _loaded(entry: EntryPoint, problems: list[Problem]) -> Iterator[Detector]:
    """What an entry point gives: a detector, a class of one, or a tuple of either."""
    try:
        value: Any = entry.load()
        for one in value if isinstance(value, list | tuple) else (value,):
            detector = one() if isinstance(one, type) else one
            if not callable(getattr(detector, "detect", None)) or not isinstance(detector.name, str):
                raise TypeError("it is no detector: name, causes and detect(evidence) are expected")
            if not isinstance(detector.causes, tuple) or not all(isinstance(cause, str) for cause in detector.causes):
                raise TypeError("its causes are no tuple of ids")
            yield detector
    except Exception as error:
        problems.append(Problem("detector", f"{entry.name} ({entry.value})", _told(error)))


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
