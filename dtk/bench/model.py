"""The result of `dtk bench comm` as typed values, and its JSON form. Measures nothing."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from dtk.bench.bandwidth import DEFINITIONS, OPERATIONS, algorithm_bandwidth, bus_bandwidth
from dtk.compare.statistics import METHOD, Estimate

SCHEMA = "dtk.bench.comm/1"
AS_IS = "as it is"  # Name of the only side if no preset was chosen.


@dataclass(frozen=True, slots=True)
class Side:
    """Environment of one set of launches."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    """Variables of the user's environment that override the preset's."""

    @property
    def effective(self) -> dict[str, str]:
        """The preset's variables as the ranks see them."""
        return {**self.variables, **self.kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One operation at one size under one side."""

    side: str
    operation: str
    size_bytes: int
    count: int
    """Number of elements of that size."""
    calls: int
    """Number of consecutive calls per figure; the minimum over all launches."""
    time_s: Estimate
    """Time of one call."""
    wrong_elements: int
    """Sum over all ranks and launches."""

    def algbw(self) -> Estimate:
        """Return algorithm bandwidth in GB/s: a longer time is a lower bandwidth."""
        return self.time_s.falling(lambda seconds: algorithm_bandwidth(self.size_bytes, seconds))

    def busbw(self, world_size: int) -> Estimate:
        """Return bus bandwidth in GB/s."""
        return self.time_s.falling(lambda time_s: bus_bandwidth(self.operation, self.size_bytes, time_s, world_size))


@dataclass(frozen=True, slots=True)
class Gain:
    """The second side over the first in bandwidth, over pairs of launches."""

    operation: str
    size_bytes: int
    ratio: Estimate
    """Above 1: the second is faster."""

    @property
    def verdict(self) -> str:
        """Assessment that the figures support."""
        if self.ratio.holds(1.0):
            return "indistinguishable from noise"
        return "faster" if self.ratio.median > 1 else "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """The complete result."""

    backend: str
    device: str
    """cpu or cuda."""
    about: dict[str, Any]
    """Host, device and versions of rank 0."""
    world_size: int
    dtype: str
    sides: tuple[Side, ...]
    results: tuple[Result, ...]
    gains: tuple[Gain, ...] = ()
    left_out: tuple[dict[str, Any], ...] = ()
    """Operation, size from which on it was skipped, and reason."""
    notes: tuple[str, ...] = ()
    failure: str = ""
    """Why it ended early; figures measured before are kept."""
    seconds: float = 0.0
    """Total wall-clock time."""

    @property
    def wrong(self) -> bool:
        """Whether any result was wrong."""
        return any(result.wrong_elements for result in self.results)


def as_json(report: BenchReport) -> dict[str, Any]:
    """Return plain values: the fields of the report, with what follows from them."""
    results = []
    for result in report.results:
        rates = {"algbw_gb_per_s": result.algbw(), "busbw_gb_per_s": result.busbw(report.world_size)}
        results.append({**msgspec.to_builtins(result), **msgspec.to_builtins(rates)})
    return {
        "schema": SCHEMA,
        **msgspec.to_builtins(report),
        "redop": "sum",
        "in_place": {name: operation.in_place for name, operation in OPERATIONS.items()},
        "definitions": {**DEFINITIONS, "interval": METHOD},
        "results": results,
        "gains": [{**msgspec.to_builtins(gain), "verdict": gain.verdict} for gain in report.gains],
        "failure": report.failure or None,
        "seconds": round(report.seconds, 3),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Settings of one launch."""

    operations: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    """Ascending, as asked for; what is sent is `Operation.fitted`."""
    dtype: str
    device: str
    backend: str
    passes: int
    """Number of measuring passes, after the one that warms up and verifies."""
    warm_up: int
    """Number of calls before a size is timed."""
    calls: int
    """Maximum number of consecutive calls per figure."""
    seconds: float
    """Measuring budget in seconds; sizes that exceed it are skipped."""
    timeout_s: float

    def dumps(self) -> str:
        """Return it as one line."""
        return msgspec.json.encode(self).decode()


def loads(text: str) -> Spec:
    """Read a launch that `Spec.dumps` wrote."""
    return msgspec.json.decode(text, type=Spec)


def key_of(operation: str, size_bytes: int) -> str:
    """Name of one cell of the table in the lines that ranks write."""
    return f"{operation} {size_bytes}"
