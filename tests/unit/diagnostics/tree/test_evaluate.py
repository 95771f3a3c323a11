"""Three-valued logic and minimal cut sets, held against their definitions by brute force."""

from itertools import product

from hypothesis import given, strategies as st
from msgspec.structs import replace

from diagnostics.contract.findings import SURE, Finding, Stated, Status
from diagnostics.tree.evaluate import combine, cut_sets, evaluate
from diagnostics.tree.model import Gate, Leaf, Node, Tree, leaves, minimal_cut_sets

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


def truth(one: Node, holds: dict[str, bool]) -> bool:
    if isinstance(one, Leaf):
        return holds[one.cause]
    values = [truth(child, holds) for child in one.children]
    return any(values) if one.gate == "or" else all(values)


def finding(cause: str, status: Status, **values: str) -> Finding:
    return Finding(cause=cause, status=status, facts=Stated(f"why {cause}", **values))


def tree_of(one: Node) -> Tree:
    return Tree(Gate("top", "top", "or", (one,)), (), "test")


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
def test_a_decided_status_holds_whatever_the_undecided_turn_out_to_be(one: Node, statuses: list[Status]) -> None:
    findings = [finding(cause, status) for cause, status in zip(CAUSES, statuses, strict=True)]
    status = evaluate([tree_of(one)], findings).status
    unknown = [cause for cause, known in zip(CAUSES, statuses, strict=True) if known == "undecided"]
    for values in product((True, False), repeat=len(unknown)):
        holds = {cause: known == "confirmed" for cause, known in zip(CAUSES, statuses, strict=True)}
        holds |= dict(zip(unknown, values, strict=True))
        if status != "undecided":
            assert truth(one, holds) == (status == "confirmed")


@given(node)
def test_minimal_cut_sets_are_those_of_the_definition(one: Node) -> None:
    names = sorted({found.cause for found in leaves(one)})
    cuts = [
        frozenset(name for name, value in zip(names, values, strict=True) if value)
        for values in product((True, False), repeat=len(names))
        if truth(one, dict(zip(names, values, strict=True)))
    ]
    expected = {cut for cut in cuts if not any(other < cut for other in cuts)}
    found = minimal_cut_sets(one)
    assert len(found) == len(set(found)) and set(found) == expected


def test_the_strongest_finding_counts_and_a_cause_without_one_is_undecided() -> None:
    both = Gate("any", "any", "or", (Leaf("c.a", "a", "slow"), Leaf("c.b", "b", "slow")))
    found = [finding("c.a", "ruled_out"), finding("c.a", "confirmed")]
    children = evaluate([tree_of(both)], found).children[0].children[0].children
    assert [(child.status, child.findings) for child in children] == [("confirmed", (*found[::-1],)), ("undecided", ())]


def test_cut_sets_that_are_ruled_out_are_left_out() -> None:
    either = Gate("any", "any", "or", (Leaf("c.a", "a", "slow"), Leaf("c.b", "b", "slow"), Leaf("c.c", "c", "slow")))
    found = cut_sets([tree_of(either)], [finding("c.a", "ruled_out"), finding("c.c", "confirmed")])
    assert [(one.causes, one.status) for one in found] == [(("c.c",), "confirmed"), (("c.b",), "undecided")]
