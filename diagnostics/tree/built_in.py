"""The built-in fault trees: made from the causes in `diagnostics/causes` and their branches."""

from collections.abc import Sequence
from pathlib import Path

from diagnostics.causes import registry
from diagnostics.causes.branches import BRANCHES
from diagnostics.contract.causes import AnyCause, Branch
from diagnostics.tree.load import load
from diagnostics.tree.model import Gate, Leaf, Node, Rule, Tree, gates, leaves


def built_in(causes: Sequence[AnyCause] | None = None) -> list[Tree]:
    """Return one tree for each top event, in the order of `BRANCHES`.

    Args:
        causes: the leaves; default: all that come with dtk.
    """
    causes = registry.built_in() if causes is None else causes
    legacy = _legacy({cause.id for cause in causes})
    trees = []
    for branch in BRANCHES:
        if branch.above:
            continue
        top = _gate(branch, causes, legacy)
        below = {leaf.cause for leaf in leaves(top)}
        rules = [
            Rule(reason.causes, (cause.id,), reason.when)
            for cause in causes
            if cause.id in below
            for reason in cause.explained_by
        ]
        rules += legacy[branch.id].rules if branch.id in legacy else ()
        trees.append(Tree(top, tuple(rules), "a built-in tree"))
    return trees


def _gate(branch: Branch, causes: Sequence[AnyCause], legacy: dict[str, Tree]) -> Gate:
    children: list[Node] = []
    for below in BRANCHES:
        if below.above == branch.id:
            gate = _gate(below, causes, legacy)
            children += [gate] if gate.children else []
    children += [Leaf(cause.id, cause.title, cause.outcome) for cause in causes if cause.branch == branch.id]
    children += [
        leaf
        for tree in legacy.values()
        for gate in gates(tree.top)
        if gate.id == branch.id
        for leaf in gate.children
        if isinstance(leaf, Leaf) and leaf.cause not in {cause.id for cause in causes}
    ]
    return Gate(branch.id, branch.title, branch.gate, tuple(children))


def _legacy(moved: set[str]) -> dict[str, Tree]:
    """Trees of families whose causes are still described in YAML beside this module, without the causes that moved."""
    trees = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        tree = load(path)
        rules = [
            Rule(rule.causes, tuple(sorted(rest)), rule.when)
            for rule in tree.rules
            if (rest := set(rule.explains) - moved)
        ]
        trees[tree.top.id] = Tree(tree.top, tuple(rules), tree.file)
    return trees
