"""The evaluated tree in other tools' formats: Mermaid, Graphviz DOT, Open-PSA MEF XML.

Titles and measured values come from evidence; each format's own escaping keeps them text.
"""

import re
from collections.abc import Callable, Iterator
from html import escape

from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Status
from diagnostics.contract.formatting import clean
from diagnostics.report.branches import WordedBranch

_COLOURS: dict[Status, tuple[str, str]] = table_beside(__file__)["colours"]
_PROBABILITY: dict[Status, str] = {"confirmed": "1.0", "ruled_out": "0.0"}
_MARK: dict[Status, str] = {"confirmed": "confirmed", "undecided": "undecided", "ruled_out": "ruled out"}


def mermaid(tree: WordedBranch) -> str:
    """Return a flowchart in Mermaid. Leaves are rounded, and measured values are shown on the edges."""
    lines = ["flowchart TD"]
    for number, parent, branch in _numbered(tree):
        name = _mermaid_text(f"{branch.title}<br/>{branch.gate or _MARK[branch.status]}")
        lines.append(f'  n{number}("{name}")' if branch.gate is None else f'  n{number}["{name}"]')
        lines.append(f"  class n{number} {branch.status}")
        if parent is not None:
            measured = f'|"{_mermaid_text(branch.measured)}"|' if branch.gate is None and branch.measured else ""
            lines.append(f"  n{parent} -->{measured} n{number}")
    for status, (fill, line) in _COLOURS.items():
        lines.append(f"  classDef {status} fill:{fill},stroke:{line},color:#111111")
    return "\n".join(lines) + "\n"


def dot(tree: WordedBranch) -> str:
    """Return a directed graph in DOT: `and` gates are houses, `or` gates inverted houses, and causes ellipses."""
    lines = ["digraph fault_tree {", "  rankdir=LR;", '  node [style=filled, fontname="sans-serif"];']
    shapes = {"and": "house", "or": "invhouse", None: "ellipse"}
    for number, parent, branch in _numbered(tree):
        fill, line = _COLOURS[branch.status]
        under = branch.gate or branch.id
        label = _dot_text(f"{branch.title}\n{under}: {_MARK[branch.status]}")
        lines.append(f'  n{number} [label="{label}", shape={shapes[branch.gate]}, fillcolor="{fill}", color="{line}"];')
        if parent is not None:
            measured = f' [label="{_dot_text(branch.measured)}"]' if branch.gate is None and branch.measured else ""
            lines.append(f"  n{parent} -> n{number}{measured};")
    return "\n".join([*lines, "}"]) + "\n"


def open_psa(tree: WordedBranch) -> str:
    """Return the Open-PSA Model Exchange Format 2.0d, with one fault tree per top event.

    A cause is a basic event with probability 1 (confirmed) or 0 (ruled out), and without one if undecided.
    """
    names = _Names()
    parts = ['<?xml version="1.0" encoding="UTF-8"?>', "<opsa-mef>"]
    for top in tree.children:
        parts.append(f"  <define-fault-tree name={_quoted(names('tree', top.id))}>")
        parts += [line for _, _, branch in _numbered(top) if branch.gate for line in _define_gate(branch, names)]
        parts.append("  </define-fault-tree>")
    parts.append("  <model-data>")
    written: set[str] = set()
    for _, _, branch in _numbered(tree):
        if branch.gate is None and branch.id not in written:
            written.add(branch.id)
            parts.append(f"    <define-basic-event name={_quoted(names('event', branch.id))}>")
            parts += _about(branch, "      ")
            parts += [f'      <float value="{_PROBABILITY[branch.status]}"/>'] if branch.status in _PROBABILITY else []
            parts.append("    </define-basic-event>")
    return "\n".join([*parts, "  </model-data>", "</opsa-mef>"]) + "\n"


FORMATS: dict[str, Callable[[WordedBranch], str]] = {"mermaid": mermaid, "dot": dot, "openpsa": open_psa}


class _Names:
    """Open-PSA names: letters, digits, `_` and `-`; a dot separates paths there. Equal ids get equal names."""

    def __init__(self) -> None:
        self.given: dict[tuple[str, str], str] = {}

    def __call__(self, kind: str, name: str) -> str:
        key = kind, name
        if key not in self.given:
            plain = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-") or "unnamed"
            self.given[key] = f"{plain}-{len(self.given)}" if plain in self.given.values() else plain
        return self.given[key]


def _define_gate(branch: WordedBranch, names: _Names) -> list[str]:
    members = [
        f"<gate name={_quoted(names('gate', child.id))}/>"
        if child.gate
        else f"<basic-event name={_quoted(names('event', child.id))}/>"
        for child in branch.children
    ]
    if len(members) != 1:
        members = [f"<{branch.gate}>", *(f"  {member}" for member in members), f"</{branch.gate}>"]
    return [
        f"    <define-gate name={_quoted(names('gate', branch.id))}>",
        *_about(branch, "      "),
        *(f"      {line}" for line in members),
        "    </define-gate>",
    ]


def _about(branch: WordedBranch, indent: str) -> list[str]:
    values = {"id": branch.id, "status": branch.status, "measured": branch.measured, "reason": branch.reason}
    attributes = [
        f"{indent}  <attribute name={_quoted(name)} value={_quoted(_printable(value))}/>"
        for name, value in values.items()
        if value
    ]
    label = f"{indent}<label>{escape(_printable(branch.title), quote=False)}</label>"
    return [label, f"{indent}<attributes>", *attributes, f"{indent}</attributes>"]


def _numbered(tree: WordedBranch) -> Iterator[tuple[int, int | None, WordedBranch]]:
    """Yield (number, number of the parent, branch) for each branch, parents first."""
    todo: list[tuple[int | None, WordedBranch]] = [(None, tree)]
    number = 0
    while todo:
        parent, branch = todo.pop()
        yield number, parent, branch
        todo += [(number, child) for child in reversed(branch.children)]
        number += 1


def _quoted(text: str) -> str:
    return '"' + escape(text).replace("\n", "&#10;") + '"'


def _printable(text: str) -> str:
    return clean(" ".join(text.split()))


def _mermaid_text(text: str) -> str:
    """Everything but letters, digits and harmless signs as an entity code; `<br/>` of our own stays."""
    parts = map(_printable, text.split("<br/>"))
    return "<br/>".join(re.sub(r"[^\w ,./=%+-]", lambda sign: f"#{ord(sign.group())};", part) for part in parts)


def _dot_text(text: str) -> str:
    lines = (_printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return "\\n".join(lines)
