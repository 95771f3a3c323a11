"""Evaluates trees over findings with three-valued (Kleene) logic. The causes are decided by detectors.

A cause without a finding is undecided. An `or` is confirmed by one confirmed child and ruled out only by
all; an `and` is ruled out by one and confirmed only by all.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from diagnostics.contract.causes import GateKind
from diagnostics.contract.findings import Finding, Status, text_of
from diagnostics.tree.model import Gate, Leaf, Node, Tree, minimal_cut_sets

_STRENGTH: dict[Status, int] = {"confirmed": 2, "undecided": 1, "ruled_out": 0}


class Branch(Struct, frozen=True):
    """A node of the evaluated tree."""

    id: str
    title: str
    gate: GateKind | None
    """None for a leaf, whose `id` is its cause."""
    status: Status
    findings: tuple[Finding, ...] = ()
    """What decides a leaf, the strongest status first."""
    children: "tuple[Branch, ...]" = ()


class CutSet(Struct, frozen=True):
    """A set of causes that together lead to one top event, with its status."""

    tree: str
    causes: tuple[str, ...]
    status: Status


def combine(gate: GateKind, statuses: Sequence[Status]) -> Status:
    """Combine by Kleene's conjunction or disjunction; without children, `or` is ruled out and `and` confirmed."""
    strengths = [_STRENGTH[status] for status in statuses]
    value = max(strengths, default=0) if gate == "or" else min(strengths, default=2)
    return next(status for status, strength in _STRENGTH.items() if strength == value)


def by_cause(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return cause -> its findings, the strongest status first."""
    table: dict[str, list[Finding]] = {}
    for finding in findings:
        table.setdefault(finding.cause, []).append(finding)
    for several in table.values():
        several.sort(key=lambda f: (-_STRENGTH[f.status], -f.confidence, f.ranks, text_of(f).summary))
    return table


def evaluate(trees: Sequence[Tree], findings: Sequence[Finding]) -> Branch:
    """Evaluate all trees below one `or`: the run has a problem."""
    table = by_cause(findings)
    children = tuple(_branch(tree.top, table) for tree in trees)
    return _gate("run", "The run has a problem", "or", children)


def cut_sets(trees: Sequence[Tree], findings: Sequence[Finding]) -> list[CutSet]:
    """Return the minimal cut sets that are confirmed, followed by those that are still possible."""
    table = by_cause(findings)
    result: list[CutSet] = []
    for tree in trees:
        for causes in minimal_cut_sets(tree.top):
            status = combine("and", [table[cause][0].verdict if cause in table else "undecided" for cause in causes])
            if status != "ruled_out":
                result.append(CutSet(tree.top.id, tuple(sorted(causes)), status))
    return sorted(result, key=lambda cut: -_STRENGTH[cut.status])


def _branch(node: Node, table: Mapping[str, list[Finding]]) -> Branch:
    if isinstance(node, Gate):
        return _gate(node.id, node.title, node.gate, tuple(_branch(child, table) for child in node.children))
    findings = table.get(node.cause, ())
    return Branch(node.cause, node.title, None, findings[0].verdict if findings else "undecided", tuple(findings))


def _gate(name: str, title: str, gate: GateKind, children: tuple[Branch, ...]) -> Branch:
    return Branch(name, title, gate, combine(gate, [child.status for child in children]), children=children)


def own_tree(causes: Iterable[str]) -> Tree:
    """Return a tree for causes of custom detectors that no other tree contains."""
    below = tuple(Leaf(cause, cause, "at_risk") for cause in sorted(causes))
    return Tree(Gate("own", "Causes of your own detectors", "or", below), (), "own detectors")
