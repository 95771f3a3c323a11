"""Fault trees: leaves, gates, the reach of a rule, and minimal cut sets that are minimal and complete."""

from itertools import chain, combinations

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.tree.model import (
    MAX_CUT_SETS,
    Gate,
    Leaf,
    Node,
    Rule,
    TooManyCutSetsError,
    gates,
    leaves,
    minimal_cut_sets,
)

CAUSES = "abcd"
LEAVES = st.sampled_from(CAUSES).map(lambda cause: Leaf(cause, cause, "hung"))
TREES = st.recursive(
    LEAVES,
    lambda child: st.builds(
        lambda kind, children: Gate("g", "g", kind, tuple(children)),
        st.sampled_from(["and", "or"]),
        st.lists(child, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


def leaf(cause: str) -> Leaf:
    return Leaf(cause, cause, "hung")


def gate(kind: str, *children: Node, id: str = "g") -> Gate:
    return Gate(id, id, kind, children)  # type: ignore[arg-type]


def happens(node: Node, true: frozenset[str]) -> bool:
    """Whether the event of a node happens when these causes do."""
    if isinstance(node, Leaf):
        return node.cause in true
    return (all if node.gate == "and" else any)(happens(child, true) for child in node.children)


@given(TREES)
@settings(max_examples=40, deadline=None)
def test_cut_sets_are_exactly_what_leads_to_the_event(tree: Node) -> None:
    cuts = minimal_cut_sets(tree)
    subsets = chain.from_iterable(combinations(CAUSES, size) for size in range(len(CAUSES) + 1))
    for true in map(frozenset, subsets):
        assert happens(tree, true) == any(cut <= true for cut in cuts)
    assert not any(item < other for item in cuts for other in cuts), "none contains another one"
    assert [len(cut) for cut in cuts] == sorted(len(cut) for cut in cuts)


def test_leaves_and_gates_come_from_left_to_right() -> None:
    tree = gate("or", leaf("a"), gate("and", leaf("b"), leaf("c"), id="inner"), leaf("a"), id="top")
    assert [item.cause for item in leaves(tree)] == ["a", "b", "c", "a"]
    assert [item.id for item in gates(tree)] == ["top", "inner"]
    assert list(gates(leaf("a"))) == []


def test_an_and_of_wide_ors_has_too_many() -> None:
    wide = [gate("or", *(leaf(f"c{n}_{k}") for k in range(300))) for n in range(2)]
    with pytest.raises(TooManyCutSetsError, match=str(MAX_CUT_SETS)):
        minimal_cut_sets(gate("and", *wide))


def test_one_cause_alone_is_no_set_too_many() -> None:
    assert len(minimal_cut_sets(gate("or", *(leaf(f"c{n}") for n in range(500))))) == 500


@pytest.mark.parametrize(
    ("cause", "other", "matches"),
    [("overlap.skew", "hang.network", True), ("overlap.skew", "overlap.skew", False),
     ("memory.leak", "hang.network", False),
     ("hang.startup", "hang.network", True), ("hang.startup", "env.x", False)],
)  # fmt: skip
def test_a_rule_is_about_ids_and_patterns_in_this_order(cause: str, other: str, matches: bool) -> None:
    rule = Rule(("overlap.*", "hang.startup"), ("hang.*", "overlap.skew"), ("any",))
    assert rule.matches(cause, other) == matches
