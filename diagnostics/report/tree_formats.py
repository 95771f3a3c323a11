"""The evaluated tree in other tools' formats: Mermaid, Graphviz DOT, Open-PSA MEF XML.

Titles and measured values come from evidence; each format's own escaping keeps them text.
"""

import re
from collections.abc import Callable, Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Status
from diagnostics.contract.formatting import clean
from diagnostics.report.wording import WordedBranch

_COLOURS: dict[Status, tuple[str, str]] = table_beside(__file__)["colours"]
_PROBABILITY: dict[Status, str] = {"confirmed": "1.0", "ruled_out": "0.0"}


def mermaid(tree: WordedBranch) -> str:
    """Return a flowchart in Mermaid. Leaves are rounded, and measured values are shown on the edges."""
    lines = ["flowchart TD"]
    for number, parent, branch in _numbered(tree):
        name = _mermaid_text(f"{branch.title}<br/>{branch.gate or branch.status.replace('_', ' ')}")
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
        label = _dot_text(f"{branch.title}\n{under}: {branch.status.replace('_', ' ')}")
        lines.append(f'  n{number} [label="{label}", shape={shapes[branch.gate]}, fillcolor="{fill}", color="{line}"];')
        if parent is not None:
            measured = f' [label="{_dot_text(branch.measured)}"]' if branch.gate is None and branch.measured else ""
            lines.append(f"  n{parent} -> n{number}{measured};")
    return "\n".join([*lines, "}"]) + "\n"


def open_psa(tree: WordedBranch) -> str:
    """Return the Open-PSA Model Exchange Format 2.0d, with one fault tree per top event.

    A cause is a basic event with probability 1 (confirmed) or 0 (ruled out), and without one if undecided.
    """
    root = Element("opsa-mef")
    for top in tree.children:
        fault_tree = SubElement(root, "define-fault-tree", name=_name(top.id))
        for gate in (branch for _, _, branch in _numbered(top) if branch.gate):
            defined = _defined(fault_tree, "gate", gate)
            members = defined if len(gate.children) == 1 else SubElement(defined, str(gate.gate))
            for child in gate.children:
                SubElement(members, "gate" if child.gate else "basic-event", name=_name(child.id))
    data = SubElement(root, "model-data")
    causes: dict[str, WordedBranch] = {}
    for _, _, branch in _numbered(tree):
        if branch.gate is None:
            causes.setdefault(branch.id, branch)
    for cause in causes.values():
        event = _defined(data, "basic-event", cause)
        if cause.status in _PROBABILITY:
            SubElement(event, "float", value=_PROBABILITY[cause.status])
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


FORMATS: dict[str, Callable[[WordedBranch], str]] = {"mermaid": mermaid, "dot": dot, "openpsa": open_psa}


def _defined(parent: Element, kind: str, branch: WordedBranch) -> Element:
    """Add the definition of a branch, with its title and its words as attributes."""
    element = SubElement(parent, f"define-{kind}", name=_name(branch.id))
    SubElement(element, "label").text = _printable(branch.title)
    attributes = SubElement(element, "attributes")
    values = {"id": branch.id, "status": branch.status, "measured": branch.measured, "reason": branch.reason}
    for name, value in values.items():
        if value:
            SubElement(attributes, "attribute", name=name, value=_printable(value))
    return element


def _name(identity: str) -> str:
    """Return a name of Open-PSA: letters, digits, `_` and `-`, as a dot separates paths there."""
    return re.sub(r"[^\w.]", lambda sign: f"_{ord(sign[0])}_", identity, flags=re.ASCII).replace(".", "-")


def _numbered(tree: WordedBranch) -> Iterator[tuple[int, int | None, WordedBranch]]:
    """Yield (number, number of the parent, branch) for each branch, parents first."""
    todo: list[tuple[int | None, WordedBranch]] = [(None, tree)]
    number = 0
    while todo:
        parent, branch = todo.pop()
        yield number, parent, branch
        todo += [(number, child) for child in reversed(branch.children)]
        number += 1


def _printable(text: str) -> str:
    return clean(" ".join(text.split()))


def _mermaid_text(text: str) -> str:
    """Everything but letters, digits and harmless signs as an entity code; `<br/>` of our own stays."""
    parts = map(_printable, text.split("<br/>"))
    return "<br/>".join(re.sub(r"[^\w ,./=%+-]", lambda sign: f"#{ord(sign.group())};", part) for part in parts)


def _dot_text(text: str) -> str:
    lines = (_printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return "\\n".join(lines)
