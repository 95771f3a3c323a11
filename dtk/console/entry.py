"""The exit of every dtk program: one line for a user's error, one for Ctrl-C, silence for a closed pipe."""

import os
import sys
from collections.abc import Callable

from diagnostics.contract.errors import DiagnosticsError
from dtk.errors import INTERRUPTED, USER_ERROR, DtkError, OwnRankError


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
