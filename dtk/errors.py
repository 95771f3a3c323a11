"""Errors that the user can fix: what happened, why, and what to type next."""

from collections.abc import Iterator
from contextlib import contextmanager

from diagnostics.contract.errors import ErrorRows
from diagnostics.contract.formatting import clean

USER_ERROR = 2  # Exit code of every command for a problem that the user can fix.
INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell reports it; `dtk.launch.stopping` has the codes of a run that has started."""


class DtkError(Exception):
    """A problem that the user can fix. Shown as one line with exit code 2, never as a traceback.

    Args:
        what: what happened, in the user's words (`unknown strategy "fsd"`).
        why: the reason or the rule that was broken; may be empty.
        fix: what to type or change next (`did you mean strategy=fsdp?`); may be empty.
    """

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts[0] += f": {self.why}"
        if self.fix:
            parts.append(self.fix)
        return clean(" ".join(" - ".join(parts).split()))

    def __reduce__(self) -> tuple[type["DtkError"], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.fix)


class Errors(ErrorRows[DtkError]):
    """The errors of a module, as rows of the YAML file next to it: what, why and fix."""

    def __init__(self, module: str, kind: type[DtkError] = DtkError) -> None:
        super().__init__(module, kind)


class OwnRankError(DtkError):
    """A problem of this rank only, under a foreign launcher: the rank reports it itself, whatever its number."""


@contextmanager
def refused(what: str, fix: str = "", *damaged: type[Exception]) -> Iterator[None]:
    """Convert an OSError of the block into a DtkError of one line.

    `damaged` are further exceptions to convert, such as ValueError for a damaged file.

    Raises:
        DtkError: `what`, and the reason in one line.
    """
    expected: tuple[type[Exception], ...] = (OSError, *damaged)
    try:
        yield
    except expected as error:
        raise DtkError(what, getattr(error, "strerror", None) or " ".join(str(error).split()), fix) from error
