"""The words of memory findings: bytes, shares, ranks. Knows no evidence but what it is handed."""

from collections.abc import Iterable

from diagnostics.contract.findings import Where
from diagnostics.contract.formatting import bytes_text, ranks_spoken
from diagnostics.evidence.model import Frame

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


def spot(site: Frame, at_head: bool) -> str:
    """` at sharded.py:54`; where the line is only the function's head, ` in log_norms (sharded.py:50)`."""
    if not at_head:
        return f" at {place(site.file, site.line)}"
    if site.function == "<module>":
        return f" in {place(site.file, site.line).rpartition(':')[0]}"
    return f" in {site.function} ({place(site.file, site.line)})"


def where(site: Frame, at_head: bool, rank: int | None, does: str) -> tuple[Where, ...]:
    """The line, and whether it is only that of the function's head."""
    head = "a line of the script around it" if site.function == "<module>" else "the line is the function's first"
    return (Where(rank, site.file, site.line, site.function, f"{does} ({head})" if at_head else does),)
