"""Three-valued logic and minimal cut sets, held against their definitions by brute force."""

from itertools import product

from hypothesis import given, strategies as st
from msgspec.structs import replace

from diagnostics.contract.findings import SURE, Finding, Status, Text
from diagnostics.tree.model import Gate, Leaf, Node, Tree, combine, cut_sets, evaluate, leaves, minimal_cut_sets

CAUSES = ("c.a", "c.b", "c.c", "c.d")
STATUSES: tuple[Status, ...] = ("confirmed", "undecided", "ruled_out")

leaf = st.sampled_from(CAUSES).map(lambda cause: Leaf(cause, cause, "slow"))
node = st.recursive(
    leaf,
    lambda inner: st.builds(
        lambda kind, children: Gate("g", "g", kind, tuple(children)),
        st.sampled_from(["and", "or"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


def truth(node: Node, holds: dict[str, bool]) -> bool:
    if isinstance(node, Leaf):
        return holds[node.cause]
    values = [truth(child, holds) for child in node.children]
    return any(values) if node.gate == "or" else all(values)


def finding(cause: str, status: Status, **values: str) -> Finding:
    return Finding(cause=cause, status=status, facts=Text(f"why {cause}", **values))


def tree_of(node: Node) -> Tree:
    return Tree(Gate("top", "top", "or", (node,)), (), "test")


def test_kleene_tables() -> None:
    t, u, f = STATUSES
    assert [combine("or", pair) for pair in product(STATUSES, repeat=2)] == [t, t, t, t, u, u, t, u, f]
    assert [combine("and", pair) for pair in product(STATUSES, repeat=2)] == [t, u, f, u, u, f, f, f, f]


def test_a_suspected_cause_confirms_no_branch_and_no_cut_set() -> None:
    trees = [tree_of(Gate("g", "g", "and", (Leaf("c.a", "a", "slow"), Leaf("c.b", "b", "slow"))))]
    sure, suspected = finding("c.a", "confirmed"), replace(finding("c.b", "confirmed"), confidence=SURE - 0.01)
    assert evaluate(trees, [sure, suspected]).status == "undecided"
    assert [cut.status for cut in cut_sets(trees, [sure, suspected])] == ["undecided"]
    assert evaluate(trees, [sure, replace(suspected, confidence=SURE)]).status == "confirmed"


@given(node, st.lists(st.sampled_from(STATUSES), min_size=4, max_size=4))
def test_a_decided_status_holds_whatever_the_undecided_turn_out_to_be(item: Node, statuses: list[Status]) -> None:
    findings = [finding(cause, status) for cause, status in zip(CAUSES, statuses, strict=True)]
    status = evaluate([tree_of(item)], findings).status
    unknown = [cause for cause, expected in zip(CAUSES, statuses, strict=True) if expected == "undecided"]
    for values in product((True, False), repeat=len(unknown)):
        holds = {cause: expected == "confirmed" for cause, expected in zip(CAUSES, statuses, strict=True)}
        holds |= dict(zip(unknown, values, strict=True))
        if status != "undecided":
            assert truth(item, holds) == (status == "confirmed")


@given(node)
def test_minimal_cut_sets_are_those_of_the_definition(item: Node) -> None:
    names = sorted({leaf.cause for leaf in leaves(item)})
    cuts = [
        frozenset(name for name, value in zip(names, values, strict=True) if value)
        for values in product((True, False), repeat=len(names))
        if truth(item, dict(zip(names, values, strict=True)))
    ]
    expected = {cut for cut in cuts if not any(other < cut for other in cuts)}
    texts = minimal_cut_sets(item)
    assert len(texts) == len(set(texts)) and set(texts) == expected


def test_the_strongest_finding_counts_and_a_cause_without_one_is_undecided() -> None:
    both = Gate("any", "any", "or", (Leaf("c.a", "a", "slow"), Leaf("c.b", "b", "slow")))
    findings = [finding("c.a", "ruled_out"), finding("c.a", "confirmed")]
    children = evaluate([tree_of(both)], findings).children[0].children[0].children
    assert [(child.status, child.findings) for child in children] == [
        ("confirmed", (*findings[::-1],)),
        ("undecided", ()),
    ]


def test_cut_sets_that_are_ruled_out_are_left_out() -> None:
    either = Gate("any", "any", "or", (Leaf("c.a", "a", "slow"), Leaf("c.b", "b", "slow"), Leaf("c.c", "c", "slow")))
    result = cut_sets([tree_of(either)], [finding("c.a", "ruled_out"), finding("c.c", "confirmed")])
    assert [(item.causes, item.status) for item in result] == [(("c.c",), "confirmed"), (("c.b",), "undecided")]
