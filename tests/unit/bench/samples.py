"""Reports to show."""

from typing import Any

from dtk.bench.bandwidth import OPERATIONS
from dtk.bench.model import BenchReport, Gain, Result, Side
from dtk.compare.statistics import estimate

HOSTILE = "<script>alert(1)</script>\x1b[31m"
SIZES = (1024, 16384, 262144)


def result(side: str, operation: str, size: int, scale: float = 1.0) -> Result:
    times = [scale * (1e-4 + size / 1e9) * factor for factor in (1.0, 1.1, 0.9)]
    return Result(
        side=side,
        operation=operation,
        size_bytes=size,
        count=size // 4,
        calls=20,
        time_s=estimate(times),
        wrong_elements=0,
    )


def report(**values: Any) -> BenchReport:
    given: dict[str, Any] = {
        "backend": "gloo",
        "device": "cpu",
        "about": {"device": "x86_64", "host": "here", "torch": "2.13.0", "nccl": None},
        "world_size": 2,
        "dtype": "float32",
        "sides": (Side("auto", {"NCCL_DEBUG": "WARN"}),),
        "results": tuple(result("auto", name, size) for name in OPERATIONS for size in SIZES),
    }
    return BenchReport(**{**given, **values})


def compared(name: str = "b") -> BenchReport:
    """b needs half the time at the largest size, and differs by noise elsewhere."""
    sides = (Side("a", {"X": "1"}), Side(name, {"X": "2"}, {"X": "3"}))
    results = [result("a", "all_reduce", size) for size in SIZES]
    results += [result(name, "all_reduce", size, 0.5 if size == SIZES[-1] else 1.0) for size in SIZES]
    gains = (
        Gain("all_reduce", SIZES[0], estimate([1.0, 1.1, 0.9])),
        Gain("all_reduce", SIZES[1], estimate([1.0, 1.2, 0.9])),
        Gain("all_reduce", SIZES[2], estimate([2.0, 2.02, 1.98])),
    )
    return report(sides=sides, results=tuple(results), gains=gains)
