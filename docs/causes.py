"""Writes docs/causes.md from the fault trees: python docs/causes.py. A test checks that it is up to date."""

from pathlib import Path

from diagnostics.tree.load import built_in
from diagnostics.tree.model import Gate, Leaf, Node, Tree


def render() -> str:
    """All causes, tree by tree."""
    head = (
        "# Causes\n\nThe ids that reports, tests and users share; they never change. Made from the fault trees in "
        "`diagnostics/tree/` by `python docs/causes.py`.\n"
    )
    return head + "".join(map(_section, built_in()))


def _section(tree: Tree) -> str:
    rows = "".join(
        f"| `{leaf.cause}` | {leaf.title} | {place} | {leaf.outcome} |\n" for leaf, place in _leaves(tree.top)
    )
    return f"\n## {tree.top.title}\n| id | the cause in words | branch | outcome |\n| --- | --- | --- | --- |\n{rows}"


def _leaves(node: Node, place: str = "") -> list[tuple[Leaf, str]]:
    if isinstance(node, Leaf):
        return [(node, place)]
    return [
        found for child in node.children for found in _leaves(child, child.title if isinstance(child, Gate) else place)
    ]


if __name__ == "__main__":
    Path(__file__).with_name("causes.md").write_text(render())
