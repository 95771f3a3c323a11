"""The exported trees are valid in their formats, and text from evidence stays text there."""

import re
from xml.etree import ElementTree

import pytest

from diagnostics.report.tree_formats import dot, mermaid, open_psa
from diagnostics.report.wording import WordedBranch, worded
from tests.unit.diagnostics.report.samples import HOSTILE, finding, full, report


def count(branch: WordedBranch) -> int:
    return 1 + sum(map(count, branch.children))


def causes(branch: WordedBranch) -> set[str]:
    return {branch.id} if branch.gate is None else set().union(*map(causes, branch.children))


@pytest.fixture
def tree() -> WordedBranch:
    hostile = finding("hang.host_stall", ranks=(1,), measured=HOSTILE + '"]; end\n%% <br/>')
    return worded(report(hostile).tree)


def test_mermaid(tree: WordedBranch) -> None:
    lines = mermaid(tree).splitlines()
    assert lines[0] == "flowchart TD"
    nodes = [
        line
        for line in lines
        if re.fullmatch(r'  n\d+(\["[^"\[\]()<>]*<br/>[^"<>]*"\]|\("[^"<>]*<br/>[^"<>]*"\))', line)
    ]
    edges = [
        line for line in lines if re.fullmatch(r'  n\d+ -->(\|"[\w ,./=%+;#-]*(<br/>)?[\w ,./=%+;#-]*"\|)? n\d+', line)
    ]
    rest = [line for line in lines[1:] if line not in nodes and line not in edges]
    assert len(nodes) == count(tree) and len(edges) == count(tree) - 1
    assert all(re.match(r"  (class n\d+|classDef) (confirmed|undecided|ruled_out)", line) for line in rest)


def test_dot(tree: WordedBranch) -> None:
    text = dot(tree)
    assert text.startswith("digraph fault_tree {") and text.endswith("}\n")
    strings = re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)
    outside = re.sub(r'"(?:[^"\\\n]|\\.)*"', "", text)
    assert '"' not in outside and "script" not in outside and any("script" in string for string in strings)
    assert outside.count("->") == count(tree) - 1


def test_open_psa(tree: WordedBranch) -> None:
    root = ElementTree.fromstring(open_psa(tree))
    assert root.tag == "opsa-mef"
    gates = [gate.get("name") for gate in root.iter("define-gate")]
    events = {event.get("name"): event for event in root.iter("define-basic-event")}
    assert len(gates) == len(set(gates)) and len(events) == len(causes(tree))
    for name in (*gates, *events):
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(-[A-Za-z0-9_]+)*", name or "")
    for tag, expected in (("gate", gates), ("basic-event", events)):
        assert {item.get("name") for item in root.iter(tag)} <= set(expected)
    for formula in (*root.iter("and"), *root.iter("or")):
        assert len(formula) >= 2
    probability = {event.find("float").get("value") for event in events.values() if event.find("float") is not None}
    assert probability == {"0.0", "1.0"}
    assert "alert(1)" in ElementTree.tostring(root, encoding="unicode")


def test_an_undecided_cause_has_no_probability() -> None:
    root = ElementTree.fromstring(open_psa(worded(full().tree)))
    event = next(item for item in root.iter("define-basic-event") if item.get("name") == "hang-device_stall")
    assert (
        event.find("float") is None and event.find("attributes/attribute[@name='status']").get("value") == "undecided"
    )
