"""Runs checks one after another, each with a time limit; none can stop the others. Independent of any single check."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtk.data.network import bounded
from dtk.doctor.model import Check, Result, finding, judged
from dtk.doctor.scope import Scope

QUICK_LIMIT_S = 20.0
"""Chosen: limit of a check that only queries the system: a dead network file system or driver never answers."""
SLACK_S = 30.0
"""Chosen: extra time for a slow check in addition to importing torch and its own trial, which have the user's limit."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A completed check."""

    name: str
    topic: str
    result: Result
    seconds: float


def examine(checks: Sequence[Check], scope: Scope, begin: Callable[[Check], None]) -> list[Completed]:
    """Run all checks in this order; `begin` is called before each."""
    results = []
    for check in checks:
        begin(check)
        began_s = time.monotonic()
        limit_s = 2 * scope.timeout_s + SLACK_S if check.slow else min(QUICK_LIMIT_S, scope.timeout_s)
        results.append(Completed(check.name, check.topic, _limited(check, scope, limit_s), time.monotonic() - began_s))
    return results


def _limited(check: Check, scope: Scope, limit_s: float) -> Result:
    """Run one check in its own thread: a check that is blocked in the kernel can only be abandoned."""

    def make() -> Result:
        try:
            return check.run(scope)
        except Exception as error:  # An exception of a check affects its own result only.
            text = f"{type(error).__name__}: {error}"
            return judged([finding("check_failed", error=text, name=check.name)])

    try:
        return bounded(make, limit_s)
    except TimeoutError:
        return judged([finding("check_hangs", limit_s=limit_s)])
