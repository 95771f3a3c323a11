"""Write docs/causes.md from the causes and their fault trees: python docs/causes.py.

A test checks that it is up to date and that no cause is left out.
"""

from pathlib import Path

from diagnostics.causes import registry
from diagnostics.tree.built_in import built_in
from diagnostics.tree.model import Gate, Leaf, Node, Tree

About = dict[str, tuple[str, str]]
"""Cause -> (what it is decided from, usual remedy)."""


def render() -> str:
    """All causes, tree by tree."""
    about: About = {cause.id: (cause.decided_from, cause.remedy) for cause in registry.built_in()}
    head = (
        "# Causes\n\nThe ids that reports, tests and users share; they never change. Made from the files in "
        "`diagnostics/causes/` by `python docs/causes.py`.\n"
    )
    return head + "".join(_section(tree, about) for tree in built_in())


def _section(tree: Tree, about: About) -> str:
    rows = "".join(_row(leaf, place, *about[leaf.cause]) for leaf, place in _leaves(tree.top))
    names = ("id", "the cause in words", "branch", "decided from", "usual remedy", "outcome")
    return f"\n## {tree.top.title}\n| {' | '.join(names)} |\n|{' --- |' * len(names)}\n{rows}"


def _row(leaf: Leaf, place: str, evidence: str, remedy: str) -> str:
    return f"| `{leaf.cause}` | {leaf.title} | {place} | {evidence} | {remedy} | {leaf.outcome} |\n"


def _leaves(node: Node, place: str = "") -> list[tuple[Leaf, str]]:
    if isinstance(node, Leaf):
        return [(node, place)]
    return [
        found for child in node.children for found in _leaves(child, child.title if isinstance(child, Gate) else place)
    ]


if __name__ == "__main__":
    Path(__file__).with_name("causes.md").write_text(render())
