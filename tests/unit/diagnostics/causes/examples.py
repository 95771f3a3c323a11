"""What real or minimal jobs with a cause leave behind, beside the example in the cause's own file.

A module in a family's folder here holds them in `EXAMPLES`: id of the cause -> its example. `test_registry.py`
diagnoses each. They are of causes whose own example is a fault to plant, or other evidence of the same cause.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from diagnostics.contract.findings import Outcome


@dataclass(frozen=True, slots=True)
class Example:
    """Evidence of a job with one cause, and what the diagnosis of it must say."""

    files: Callable[[], Mapping[str, str | bytes]]
    """Relative path -> content, as a job leaves them in a folder."""
    ranks: tuple[int, ...] = ()
    """Culprits that the diagnosis must name; the cause must be the first root cause."""
    outcome: Outcome | None = None
    """Of the diagnosis; None = the cause's own. A risk becomes what it led to: memory that ran out is `oom`."""

    def write(self, folder: Path) -> None:
        """Lay the files into a folder."""
        for name, content in self.files().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def examples() -> dict[str, Example]:
    """Collect the examples of all families."""
    result: dict[str, Example] = {}
    for path in sorted(Path(__file__).parent.glob("*/*.py")):
        if "\nEXAMPLES = " in path.read_text(encoding="utf-8"):
            result |= import_module(f"{__package__}.{path.parent.name}.{path.stem}").EXAMPLES
    return result
