"""The type of a fault tree: a top event, gates, and leaves that name a cause. Independent of YAML and findings."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from msgspec import Struct

from diagnostics.contract.causes import GateKind, Relation
from diagnostics.contract.findings import Outcome

MAX_CUT_SETS = 4096  # Maximum number of minimal cut sets per tree: larger trees are unreadable.
_REDUNDANT = 16  # Combinations per minimal cut set that are compared at most.


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
