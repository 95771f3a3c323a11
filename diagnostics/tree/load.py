"""Makes the fault trees: the built-in ones from the causes and their branches, and custom ones from YAML.

Custom trees are passed with `--tree` (docs/diagnose.md), and read strictly: unknown keys, gates, ids are an error.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct, convert

from diagnostics.causes import registry
from diagnostics.causes.registry import BRANCHES, traits
from diagnostics.contract.causes import AnyCause, Branch, GateKind, Relation
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.files import read_record
from diagnostics.contract.suggest import did_you_mean
from diagnostics.evidence.limits import Limits, load_yaml
from diagnostics.tree.model import Gate, Leaf, Node, Rule, Tree, gates, leaves, minimal_cut_sets

FILE_BYTES = 1 << 20  # Size limit; the built-in trees together have 20 KiB.
DEPTH = 32  # Maximum depth of gates; the built-in trees have 3 levels.
Id = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$")]
Title = Annotated[str, Meta(pattern=r"\S")]
Names = str | Annotated[list[str], Meta(min_length=1)]
Happened = Literal["hung", "oom", "slow", "crashed", "diverged", "at_risk"]
"""The outcomes of a run that has a cause."""
_Name = TypeVar("_Name", bound=str)


def built_in(causes: Sequence[AnyCause] | None = None) -> list[Tree]:
    """Return one tree for each top event, in the order of `BRANCHES`; its leaves are `causes`, or all that dtk has."""
    causes = registry.built_in() if causes is None else causes
    trees = []
    for branch in BRANCHES:
        if branch.above:
            continue
        top = _gate(branch, causes)
        below = {leaf.cause for leaf in leaves(top)}
        rules = [
            Rule(reason.causes, (cause.id,), reason.when)
            for cause in causes
            if cause.id in below
            for reason in (*cause.explained_by, *traits(cause.id).explained_by)
        ]
        trees.append(Tree(top, tuple(rules), "a built-in tree"))
    return trees


def _gate(branch: Branch, causes: Sequence[AnyCause]) -> Gate:
    children: list[Node] = []
    for below in BRANCHES:
        if below.above == branch.id:
            gate = _gate(below, causes)
            children += [gate] if gate.children else []
    children += [Leaf(cause.id, cause.title, cause.outcome) for cause in causes if cause.branch == branch.id]
    return Gate(branch.id, branch.title, branch.gate, tuple(children))


class _Child(Struct, forbid_unknown_fields=True):
    """A node as written: a cause, or a gate with an id and children."""

    title: Title
    cause: Id | None = None
    outcome: Happened | None = None
    """Outcome of the cause; None for that of the tree."""
    id: Id | None = None
    gate: GateKind | None = None
    children: "tuple[_Child, ...]" = ()

    def node(self, outcome: Happened, depth: int) -> Node:
        """Return the node; ValueError if it is neither a cause nor a gate, or nested too deeply."""
        is_gate = bool(self.id and self.gate and self.children) and self.outcome is None
        is_leaf = not (self.id or self.gate or self.children)
        if not (is_leaf if self.cause else is_gate):
            raise ValueError(f"{self.title!r}: a node has a cause, or the keys id, gate and children")
        if depth > DEPTH:
            raise ValueError(f"{self.title!r}: nested over {DEPTH} deep")
        title = " ".join(self.title.split())
        if self.cause:
            return Leaf(self.cause, title, self.outcome or outcome)
        children = tuple(child.node(outcome, depth + 1) for child in self.children)
        return Gate(self.id or "", title, self.gate or "or", children)


class _Rule(Struct, forbid_unknown_fields=True):
    """A rule as written; a single name stands for a list of one."""

    cause: Names
    explains: Names
    when: Relation | Annotated[list[Relation], Meta(min_length=1)]


class _File(Struct, forbid_unknown_fields=True):
    """A tree as written."""

    id: Id
    title: Title
    gate: GateKind
    outcome: Happened
    children: Annotated[tuple[_Child, ...], Meta(min_length=1)]
    explains: tuple[_Rule, ...] = ()


def load(path: Path, decided: Collection[str] | None = None) -> Tree:
    """Load one tree.

    `decided` are the causes that detectors decide; None accepts any id. DiagnosticsError if it is unreadable or
    invalid; the message names the file and the location.
    """
    try:
        return _tree(str(path), load_yaml(read_record(path, FILE_BYTES), Limits()), decided)
    except OSError as error:
        raise DiagnosticsError(f"cannot read the tree {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DiagnosticsError(
            f"{path}: {' '.join(str(error).split())}", "the format is in docs/diagnose.md"
        ) from error


def _tree(path: str, content: object, decided: Collection[str] | None) -> Tree:
    file = convert(content, _File)
    root = _Child(title=file.title, id=file.id, gate=file.gate, children=file.children)
    top = root.node(file.outcome, 0)
    assert isinstance(top, Gate)
    rules = tuple(Rule(_names(rule.cause), _names(rule.explains), _names(rule.when)) for rule in file.explains)
    causes = [leaf.cause for leaf in leaves(top)]
    for name, count in Counter([*causes, *(gate.id for gate in gates(top))]).items():
        if count > 1:
            raise ValueError(f"{name!r} stands twice")
    minimal_cut_sets(top)  # Raises ValueError if there are too many.
    named = [name for rule in rules for name in rule.causes + rule.explains if "*" not in name]
    for name in [*causes, *named]:
        if decided is not None and name not in decided:
            near = did_you_mean(name, decided)
            raise ValueError(f"cause {name!r} is decided by no detector{f'; {near}' if near else ''}")
    return Tree(top, rules, path)


def _names(value: _Name | list[_Name]) -> tuple[_Name, ...]:
    return tuple(value) if isinstance(value, list) else (value,)
