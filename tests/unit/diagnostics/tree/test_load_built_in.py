"""The built-in trees: every cause is a leaf of one tree, below its branch, with its relations as rules."""

from msgspec.structs import replace

from diagnostics.causes import registry
from diagnostics.causes.registry import BRANCHES
from diagnostics.contract.causes import ExplainedBy
from diagnostics.tree.load import built_in
from diagnostics.tree.model import Gate, gates, leaves, minimal_cut_sets

CAUSES = registry.built_in()


def test_every_cause_is_a_leaf_of_one_tree() -> None:
    below = [leaf.cause for tree in built_in() for leaf in leaves(tree.top)]
    assert sorted(below) == sorted(cause.id for cause in CAUSES)


def test_a_leaf_has_the_title_and_the_outcome_of_its_cause() -> None:
    table = {leaf.cause: leaf for tree in built_in() for leaf in leaves(tree.top)}
    assert all((table[cause.id].title, table[cause.id].outcome) == (cause.title, cause.outcome) for cause in CAUSES)


def test_there_is_a_tree_for_each_top_event_in_their_order() -> None:
    assert [tree.top.id for tree in built_in()] == [branch.id for branch in BRANCHES if not branch.above]
    ids = [gate.id for tree in built_in() for gate in gates(tree.top)]
    assert len(set(ids)) == len(ids)


def test_a_gate_is_below_the_one_that_its_branch_names() -> None:
    above = {branch.id: branch.above for branch in BRANCHES}
    for tree in built_in():
        for gate in gates(tree.top):
            assert all(above[child.id] == gate.id for child in gate.children if isinstance(child, Gate))


def test_a_branch_without_causes_is_left_out() -> None:
    (only,) = (cause for cause in CAUSES if cause.id == "hang.network")
    trees = [tree for tree in built_in([only]) if tree.top.children]
    assert [leaf.cause for tree in trees for leaf in leaves(tree.top)] == ["hang.network"]
    assert all(gate.children for tree in trees for gate in gates(tree.top))


def test_the_relations_of_a_cause_are_rules_of_its_tree() -> None:
    (leak,) = (cause for cause in CAUSES if cause.id == "memory.leak")
    explained = replace(leak, explained_by=(ExplainedBy(("hang.*",), ("ranks", "group")),))
    (rule,) = (rule for tree in built_in([explained]) for rule in tree.rules)
    assert (rule.causes, rule.explains, rule.when) == (("hang.*",), ("memory.leak",), ("ranks", "group"))


def test_each_cause_alone_leads_to_its_top_event() -> None:
    for tree in built_in():
        assert all(len(cut) == 1 for cut in minimal_cut_sets(tree.top))
