"""Errors that the user can fix (what happened, why, what to type next), and how every dtk program exits."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from diagnostics.contract.errors import DiagnosticsError, ErrorRows
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

    It is `what`, and the reason. `damaged` are further exceptions to convert, such as ValueError for a damaged file.
    """
    expected: tuple[type[Exception], ...] = (OSError, *damaged)
    try:
        yield
    except expected as error:
        raise DtkError(what, getattr(error, "strerror", None) or " ".join(str(error).split()), fix) from error


def ended(run: Callable[[], int], stopped: str = "") -> int:
    """Run to the end and return the exit code."""
    leads = os.environ.get("RANK", "0") == "0"  # Every rank of torchrun was given the same words.
    try:
        code = run()
        sys.stdout.flush()
    except DiagnosticsError as error:
        print(f"dtk: {DtkError(error.what, fix=error.fix)}", file=sys.stderr)
        return USER_ERROR
    except DtkError as error:
        if leads or isinstance(error, OwnRankError):
            print(f"dtk: {error}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:  # dtk ls | head
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        if leads:
            print(f"dtk: stopped {stopped}".rstrip(), file=sys.stderr)
        return INTERRUPTED
    return code
