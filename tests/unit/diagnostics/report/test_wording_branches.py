"""The words of the fault tree: values on edges, and why a branch is ruled out or undecided."""

from diagnostics.report.wording import WordedBranch, worded
from diagnostics.tree.model import Gate, Leaf, evaluate
from tests.unit.diagnostics.tree.test_model_evaluate import finding, tree_of


def test_edges_carry_values_and_pruned_branches_their_reason() -> None:
    both = Gate("both", "both needed", "and", (Leaf("c.a", "first", "slow"), Leaf("c.b", "second", "slow")))
    findings = [finding("c.a", "confirmed", measured="41 ms"), finding("c.b", "ruled_out", measured="0 ms")]
    branch = worded(evaluate([tree_of(both)], findings)).children[0].children[0]
    assert (branch.status, branch.reason) == ("ruled_out", "ruled out: second")
    assert [child.measured for child in branch.children] == ["41 ms", "0 ms"]
    assert branch.children[1].reason == "why c.b"
    assert branch.children[0].reason == ""


def test_a_cause_without_finding_is_undecided_and_the_strongest_finding_counts() -> None:
    both = Gate("any", "any", "or", (Leaf("c.a", "a", "slow"), Leaf("c.b", "b", "slow")))
    findings = [finding("c.a", "ruled_out"), finding("c.a", "confirmed", measured="x"), finding("c.a", "confirmed")]
    children: tuple[WordedBranch, ...] = worded(evaluate([tree_of(both)], findings)).children[0].children[0].children
    assert [child.status for child in children] == ["confirmed", "undecided"]
    assert children[0].measured.endswith("(and 1 more)")
    assert children[1].reason == "no detector decided it"
