"""The notes of a prediction, from rules and the texts beside the module that decides them."""

from collections.abc import Mapping
from typing import Any

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import filled


def notes(module: str, rules: Mapping[str, object], **figures: Any) -> tuple[str, ...]:
    """Return the rows of `notes` in the YAML file next to a module whose rules hold, filled with figures."""
    rows = table_beside(module)["notes"]
    return tuple(filled(rows[row], figures) for row, holds in rules.items() if holds)
