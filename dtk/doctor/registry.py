"""All checks in order, the selection among them, and their execution with time limits: none stops others."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module

from diagnostics.contract.files import table_beside
from diagnostics.contract.suggest import did_you_mean
from dtk.data.network import bounded
from dtk.doctor.model import Check, Result, Scope, finding, judged
from dtk.errors import DtkError

_TABLE = table_beside(__file__)
CHECKS: tuple[Check, ...] = tuple(
    Check(name, topic, about, getattr(import_module(f"dtk.doctor.{module}"), name), name in _TABLE["slow"])
    for topic, modules in _TABLE["checks"].items()
    for module, checks in modules.items()
    for name, about in checks.items()
)
BETWEEN: dict[str, str] = _TABLE["between"]
"""Names of the additional checks between nodes -> what they cover."""
QUICK_LIMIT_S = 20.0
"""Chosen: limit of a check that only queries the system: a dead network file system or driver never answers."""
SLACK_S = 30.0
"""Chosen: extra time for a slow check in addition to importing torch and its own trial, which have the user's limit."""


def chosen(only: Iterable[str], skip: Iterable[str]) -> tuple[tuple[Check, ...], frozenset[str]]:
    """Return the checks to run on each node, and the names of those to run between nodes.

    Both hold (comma-separated) names of checks or topics; no `only` = all. DtkError if one is unknown, or none left.
    """
    named, excluded = _names(only, "--only"), _names(skip, "--skip")
    checks = tuple(c for c in CHECKS if (not named or {c.name, c.topic} & named) and not {c.name, c.topic} & excluded)
    between = frozenset(n for n in BETWEEN if (not named or {n, "nodes"} & named) and not {n, "nodes"} & excluded)
    if not checks and not between:
        raise DtkError("no check is left", "--skip excludes what --only selects", "dtk doctor --list names all")
    return checks, between


def topics() -> list[str]:
    """Return the topics in order."""
    return list(dict.fromkeys([*(check.topic for check in CHECKS), "nodes"]))


def _names(texts: Iterable[str], option: str) -> set[str]:
    every = [*(check.name for check in CHECKS), *BETWEEN, *topics()]
    names = {name.strip() for text in texts for name in text.split(",")}
    for name in sorted(names.difference(every)):
        fix = did_you_mean(name, every) or "dtk doctor --list names all"
        raise DtkError(f'{option}: there is no check "{name}"', fix=fix)
    return names


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
