"""Write docs/causes.md, and the ids in docs/report.schema.json, from the causes: python docs/causes.py.

A test checks that both are up to date and that no cause is left out.
"""

import json
from pathlib import Path

from diagnostics.causes import registry
from diagnostics.contract.causes import AnyCause, ExampleKind
from diagnostics.tree.load import built_in
from diagnostics.tree.model import Gate, Leaf, Node, Tree

HEAD = """# Causes

The causes that `dtk diagnose` can find. Their ids are used in reports and tests and never change. This page is
generated from `diagnostics/causes/` by `python docs/causes.py`. For each cause it states the evidence that decides it,
the evidence that rules it out, and a minimal example, which a test diagnoses. To try one, save the lines of a log in a
folder and run `dtk diagnose FOLDER`.

A cause is ruled out by any one of the alternatives of its entry; otherwise it is undecided until there is more
evidence. Two rules apply to all causes. A cause that is undecided only because ranks wait is ruled out if a confirmed
cause explains the wait. A run that finished (a dtk run, or a command under `dtk watch`, with exit code 0) rules out the
crashes, hangs and exhausted memory that its evidence leaves undecided.
"""
EVIDENCE: dict[ExampleKind, str] = {
    "fault": "A run into which this fault is injected",
    "log": "Lines of a log",
    "variables": "Environment variables, on two nodes with two GPUs each, NVLink and InfiniBand",
    "calls": "The collectives of each rank in its flight-recorder dump",
    "timeline": "One step, as the profiler traces show it (neighbouring collectives differ in case)",
    "files": "Files",
}
"""Kind of an example -> what it shows."""


def render() -> str:
    """All causes, tree by tree."""
    causes = {cause.id: cause for cause in registry.built_in()}
    return HEAD + "".join(_section(tree, causes) for tree in built_in())


def _section(tree: Tree, causes: dict[str, AnyCause]) -> str:
    leaves = _leaves(tree.top)
    has_branches = any(branch for _, branch in leaves)
    rows = "".join(_row(leaf, [branch] * has_branches, causes[leaf.cause]) for leaf, branch in leaves)
    names = ("id", "cause", *["branch"] * has_branches, "usual remedy", "outcome")
    entries = "".join(_entry(causes[leaf.cause]) + _example(causes[leaf.cause]) for leaf, _ in leaves)
    return f"\n## {tree.top.title}\n| {' | '.join(names)} |\n|{' --- |' * len(names)}\n{rows}{entries}"


def _row(leaf: Leaf, branch: list[str], cause: AnyCause) -> str:
    return f"| {' | '.join([f'`{leaf.cause}`', leaf.title, *branch, cause.remedy, leaf.outcome])} |\n"


def _entry(cause: AnyCause) -> str:
    """Return what decides a cause below its id as a heading, which links can name."""
    rows = {"Decided from": cause.decided_from, "Ruled out by": cause.ruled_out_by, "Source": cause.source}
    return f"\n### {cause.id}\n" + "".join(f"- {name}: {text.strip()}\n" for name, text in rows.items())


def _example(cause: AnyCause) -> str:
    example = cause.example
    if example is None:
        return ""
    text = example.text.strip()
    lines = f"dtk run fault={text}" if example.kind == "fault" else text
    return f"\n{EVIDENCE[example.kind]}:\n```\n{lines}\n```\n"


def _leaves(node: Node, branch: str = "") -> list[tuple[Leaf, str]]:
    if isinstance(node, Leaf):
        return [(node, branch)]
    return [
        leaf for child in node.children for leaf in _leaves(child, child.title if isinstance(child, Gate) else branch)
    ]


def schema(text: str) -> str:
    """Return the schema of report.json with the ids of all causes; own causes have an id of the same form."""
    whole = json.loads(text)
    cause = whole["$defs"]["finding"]["properties"]["cause"]
    own = {"pattern": cause.pop("pattern", None) or cause["anyOf"][1]["pattern"]}
    cause["anyOf"] = [{"enum": sorted(cause.id for cause in registry.built_in())}, own]
    return json.dumps(whole, indent=2) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("causes.md").write_text(render())
    file = Path(__file__).with_name("report.schema.json")
    file.write_text(schema(file.read_text()))
