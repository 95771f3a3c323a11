"""A fault tree: a top event, gates, and leaves that name a cause; and its evaluation over findings with three-valued
(Kleene) logic. The causes are decided by detectors. Independent of YAML.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from diagnostics.contract.causes import GateKind, Relation
from diagnostics.contract.findings import Finding, Outcome, Status, text_of
from diagnostics.contract.grouping import grouped

MAX_CUT_SETS = 4096  # Maximum number of minimal cut sets per tree: larger trees are unreadable.
_REDUNDANT = 16  # Combinations per minimal cut set that are compared at most.
_STRENGTH: dict[Status, int] = {"confirmed": 2, "undecided": 1, "ruled_out": 0}


class Leaf(Struct, frozen=True):
    """A cause that a detector decides."""

    cause: str
    title: str
    """Title of the cause, printed after the outcome (`HUNG:`) in the first line of the report."""
    outcome: Outcome
    """Outcome of the run if this is the root cause."""


class Gate(Struct, frozen=True):
    """`and`: all children are required; `or`: one is enough."""

    id: str
    title: str
    gate: GateKind
    children: "tuple[Gate | Leaf, ...]"


Node = Gate | Leaf


class Rule(Struct, frozen=True):
    """Confirmed causes that explain others, which are then consequences rather than root causes."""

    causes: tuple[str, ...]
    """Ids or shell patterns (`overlap.*`)."""
    explains: tuple[str, ...]
    when: tuple[Relation, ...]
    """Alternative conditions; one must hold (`contract.causes.Relation`)."""

    def matches(self, cause: str, other: str) -> bool:
        """Return whether this rule applies to the two ids, in this order."""
        return (cause != other or not {"tie", "basis"}.isdisjoint(self.when)) and all(
            any(fnmatchcase(name, pattern) for pattern in patterns)
            for name, patterns in ((cause, self.causes), (other, self.explains))
        )


class Tree(Struct, frozen=True):
    """One top event and its rules."""

    top: Gate
    rules: tuple[Rule, ...]
    file: str
    """File name for messages."""


class TooManyCutSetsError(ValueError):
    """The tree has over `MAX_CUT_SETS` minimal cut sets."""


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield all leaves below a node, left to right."""
    if isinstance(node, Leaf):
        yield node
        return
    for child in node.children:
        yield from leaves(child)


def gates(node: Node) -> Iterator[Gate]:
    """Yield all gates below a node, including the node itself."""
    if isinstance(node, Gate):
        yield node
        for child in node.children:
            yield from gates(child)


def minimal_cut_sets(node: Node) -> list[frozenset[str]]:
    """Return the smallest sets of causes of the event, smallest first; TooManyCutSetsError beyond `MAX_CUT_SETS`."""
    if isinstance(node, Leaf):
        return [frozenset((node.cause,))]
    parts = [minimal_cut_sets(child) for child in node.children]
    if node.gate == "or":
        return _minimal([cut for part in parts for cut in part])
    sets: list[frozenset[str]] = [frozenset()]
    for part in parts:
        if len(sets) * len(part) > MAX_CUT_SETS * _REDUNDANT:
            raise TooManyCutSetsError(f"over {MAX_CUT_SETS} minimal cut sets below {node.id}")
        sets = _minimal([left | right for left in sets for right in part])
    return sets


def _minimal(sets: list[frozenset[str]]) -> list[frozenset[str]]:
    minimal: list[frozenset[str]] = []
    for cut in sorted(set(sets), key=lambda cut: (len(cut), sorted(cut))):
        if len(cut) == 1 or not any(smaller <= cut for smaller in minimal):
            minimal.append(cut)
        if len(minimal) > MAX_CUT_SETS:
            raise TooManyCutSetsError(f"over {MAX_CUT_SETS} minimal cut sets")
    return minimal


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
    table = grouped((finding.cause, finding) for finding in findings)
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
