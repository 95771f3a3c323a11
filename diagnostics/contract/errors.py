"""Errors that the user can fix: a path that cannot be diagnosed, an option that cannot be satisfied."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import filled

E = TypeVar("E", bound=Exception)


class DiagnosticsError(Exception):
    """An error printed as one line on stderr, with exit code 2."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}; {fix}" if fix else what)
        self.what = what
        self.fix = fix


class ErrorRows(Generic[E]):
    """The errors of a module: rows of `errors` in the YAML file next to it.

    A row lists the arguments of `kind`, to be filled with figures; a figure may be a function that returns it.
    """

    def __init__(self, module: str, kind: type[E]) -> None:
        self.module, self.kind = module, kind

    def __call__(self, row: str, /, **figures: Any) -> E:
        """Return the error of a row."""
        return self.kind(*(filled(text, figures) for text in table_beside(self.module)["errors"][row]))

    def refuse(self, rules: Mapping[str, object], **figures: Any) -> None:
        """Raise the error of the first row whose value is true."""
        for row, is_broken in rules.items():
            if is_broken:
                raise self(row, **figures)
