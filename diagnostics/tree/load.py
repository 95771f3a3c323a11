"""Reads custom fault trees from YAML, strictly: an unknown key, gate or id is a one-line error.

They are passed with `--tree`; the format is in docs/diagnose.md. Built-in trees are made in `built_in.py`.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from diagnostics.contract.causes import GateKind, Relation
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.files import read_record
from diagnostics.contract.findings import Outcome
from diagnostics.contract.suggest import did_you_mean
from diagnostics.evidence import safe_yaml
from diagnostics.evidence.limits import Limits
from diagnostics.tree.model import Gate, Leaf, Rule, TooManyCutSetsError, Tree, leaves, minimal_cut_sets

FILE_BYTES = 1 << 20  # Size limit; the built-in trees together have 20 KiB.
DEPTH = 32  # Maximum depth of gates; the built-in trees have 3 levels.
_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_OUTCOMES = tuple(name for name in get_args(Outcome) if name not in ("healthy", "undecided"))


def load(path: Path, decided: Collection[str] | None = None) -> Tree:
    """Load one tree.

    `decided` are the causes that detectors decide; None accepts any id.

    Raises:
        DiagnosticsError: it is unreadable or invalid; the message names the file and the location.
    """
    try:
        content = safe_yaml.loads(read_record(path, FILE_BYTES), Limits())
        return _Reader(str(path), decided).tree(content)
    except OSError as error:
        raise DiagnosticsError(f"cannot read the tree {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DiagnosticsError(
            f"{path}: {' '.join(str(error).split())}", "the format is in docs/diagnose.md"
        ) from error


class _Reader:
    """Converts plain values to a tree; rejects repeated ids."""

    def __init__(self, file: str, decided: Collection[str] | None) -> None:
        self.file = file
        self.decided = decided
        self.ids: set[str] = set()

    def tree(self, value: Any) -> Tree:
        _keys(value, "the file", required=("id", "title", "gate", "outcome", "children"), optional=("explains",))
        outcome = _choice(value["outcome"], _OUTCOMES, "outcome")
        top = self._gate({key: value[key] for key in ("id", "title", "gate", "children")}, outcome, 0)
        rules = value.get("explains", [])
        if not isinstance(rules, list):
            raise ValueError("explains: a list of rules is expected")
        causes = {leaf.cause for leaf in leaves(top)} | set(self.decided or ())
        try:
            minimal_cut_sets(top)
        except TooManyCutSetsError as error:
            raise ValueError(str(error)) from error
        return Tree(top, tuple(self._rule(rule, n, causes) for n, rule in enumerate(rules, 1)), self.file)

    def _gate(self, value: Any, outcome: Any, depth: int) -> Gate:
        where = f"gate {value['id']!r}" if isinstance(value, dict) and "id" in value else "a node without cause"
        _keys(value, where, required=("id", "title", "gate", "children"))
        if depth > DEPTH:
            raise ValueError(f"{where}: nested over {DEPTH} deep")
        name = self._id(value["id"], where)
        kind: Any = _choice(value["gate"], get_args(GateKind), f"{where}: gate")
        if not isinstance(value["children"], list) or not value["children"]:
            raise ValueError(f"{where}: children: a list with at least one node is expected")
        children = tuple(
            self._leaf(child, outcome)
            if isinstance(child, dict) and "cause" in child
            else self._gate(child, outcome, depth + 1)
            for child in value["children"]
        )
        return Gate(name, _text(value["title"], where), kind, children)

    def _leaf(self, value: Mapping[str, Any], outcome: Any) -> Leaf:
        where = f"cause {value['cause']!r}"
        _keys(value, where, required=("cause", "title"), optional=("outcome",))
        cause = self._id(value["cause"], where)
        if self.decided is not None and cause not in self.decided:
            raise ValueError(f"{where} is decided by no detector{_or(cause, self.decided)}")
        own = _choice(value.get("outcome", outcome), _OUTCOMES, f"{where}: outcome")
        return Leaf(cause, _text(value["title"], where), own)

    def _id(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not _ID.fullmatch(value):
            raise ValueError(f"{where}: an id is lower-case words with dots between them, such as data.slow_disk")
        if value in self.ids:
            raise ValueError(f"{where} stands twice")
        self.ids.add(value)
        return value

    def _rule(self, value: Any, number: int, causes: Collection[str]) -> Rule:
        where = f"explains, rule {number}"
        _keys(value, where, required=("cause", "explains", "when"))
        rule = Rule(
            _names(value["cause"], where),
            _names(value["explains"], where),
            tuple(_choice(name, get_args(Relation), f"{where}: when") for name in _names(value["when"], where)),
        )
        if self.decided is not None:
            for name in rule.causes + rule.explains:
                if "*" not in name and name not in causes:
                    raise ValueError(f"{where}: unknown cause {name!r}{_or(name, causes)}")
        return rule


def _keys(value: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a mapping with {', '.join(required)} is expected")
    for key in value:
        if key not in required + optional:
            raise ValueError(f"{where}: unknown key {key!r}{_or(str(key), required + optional)}")
    missing = [key for key in required if key not in value]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")


def _choice(value: Any, allowed: tuple[Any, ...], where: str) -> Any:
    if value not in allowed:
        raise ValueError(f"{where}: {value!r} is none of {', '.join(allowed)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: title: a text is expected")
    return " ".join(value.split())


def _names(value: Any, where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where}: a name or a list of names is expected")
    return tuple(names)


def _or(word: str, names: Collection[str]) -> str:
    near = did_you_mean(word, names)
    return f"; {near}" if near else ""
