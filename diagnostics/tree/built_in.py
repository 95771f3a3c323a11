"""The built-in fault trees, generated from the causes in `diagnostics/causes` and their branches."""

from collections.abc import Sequence

from diagnostics.causes import registry
from diagnostics.causes.registry import BRANCHES, traits
from diagnostics.contract.causes import AnyCause, Branch
from diagnostics.tree.model import Gate, Leaf, Node, Rule, Tree, leaves


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
