"""Errors that the user can fix: what happened, why, and what to type next."""

from collections.abc import Iterator
from contextlib import contextmanager

from diagnostics.contract.formatting import clean

USER_ERROR = 2
"""Exit code of every command for a problem that the user can fix."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as of a shell's command; of a run that has begun, `dtk.launch.stopping` says more."""


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


class OwnRankError(DtkError):
    """What only this rank ran into, under a launcher of somebody else: it tells of it itself, whatever its number."""


@contextmanager
def refused(what: str, fix: str = "", *damaged: type[Exception]) -> Iterator[None]:
    """Raise what the system refuses inside as one line.

    Args:
        what: went wrong.
        fix: what to do about it.
        damaged: also raised inside, as ValueError by a file that is damaged.

    Raises:
        DtkError: `what`, and the reason in one line.
    """
    expected: tuple[type[Exception], ...] = (OSError, *damaged)
    try:
        yield
    except expected as error:
        raise DtkError(what, getattr(error, "strerror", None) or " ".join(str(error).split()), fix) from error
