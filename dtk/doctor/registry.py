"""All checks in execution order, and the selection among them."""

from collections.abc import Iterable
from importlib import import_module

from diagnostics.contract.files import table_beside
from diagnostics.contract.suggest import did_you_mean
from dtk.doctor.model import Check
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


def chosen(only: Iterable[str], skip: Iterable[str]) -> tuple[tuple[Check, ...], frozenset[str]]:
    """Return the checks to run on each node, and the names of those to run between nodes.

    Both hold names of checks or topics, each may be a comma-separated list; no `only` means all.

    Raises:
        DtkError: a name is unknown, or no check is left.
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
