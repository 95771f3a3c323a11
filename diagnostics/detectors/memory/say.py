"""The words of memory findings: bytes, shares, ranks. Knows no evidence but what it is handed."""

from collections.abc import Iterable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(value_bytes: float) -> str:
    """`3.28 MiB`"""
    value, unit = float(value_bytes), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    shown = f"{value:.0f}" if unit == 0 or value >= 1000 else f"{value:.3g}"
    return f"{shown} {_UNITS[unit]}"


def share(part_bytes: float, whole_bytes: float | None) -> str:
    """` (22 % of the peak of 15.1 MiB)`; empty without a whole."""
    if not whole_bytes or whole_bytes <= 0:
        return ""
    return f" ({min(part_bytes / whole_bytes, 9.99):.0%} of the peak of {size(whole_bytes)})".replace("%", " %")


def ranks(numbers: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-3`, `ranks 0, 2 and 5`."""
    ordered = sorted(set(numbers))
    if not ordered:
        return "every rank"
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]}-{ordered[-1]}"
    shown = [str(rank) for rank in ordered[:10]]
    if len(ordered) > 10:
        return f"{len(ordered)} ranks ({', '.join(shown[:5])}, ...)"
    text = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
    return f"rank{'s' if len(shown) > 1 else ''} {text}"


def place(file: str, line: int) -> str:
    """`sharded.py:54`"""
    return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{line}"
