"""The words of memory findings: bytes, shares, ranks. Knows no evidence but what it is handed."""

from collections.abc import Iterable

from diagnostics.words import bytes_text, ranks_spoken

size = bytes_text
"""`3.28 MiB`"""


def share(part_bytes: float, whole_bytes: float | None) -> str:
    """` (22 % of the peak of 15.1 MiB)`; empty without a whole."""
    if not whole_bytes or whole_bytes <= 0:
        return ""
    return f" ({min(part_bytes / whole_bytes, 9.99):.0%} of the peak of {size(whole_bytes)})".replace("%", " %")


def ranks(numbers: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-3`; `every rank` where none is named."""
    known = set(numbers)
    return ranks_spoken(known) if known else "every rank"


def place(file: str, line: int) -> str:
    """`sharded.py:54`"""
    return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{line}"
