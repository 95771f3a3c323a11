"""The words of the evaluated fault tree: why a branch is ruled out or undecided, and the value on its edge."""

from msgspec import Struct

from diagnostics.contract.causes import GateKind
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Status, text_of
from diagnostics.tree.evaluate import Branch

_TEXTS: dict[str, str] = table_beside(__file__)["texts"]


class WordedBranch(Struct, frozen=True):
    """A branch with its words, as report.json contains it."""

    id: str
    title: str
    gate: GateKind | None
    """None for a leaf, whose `id` is its cause."""
    status: Status
    measured: str = ""
    """The value on the edge that leads here."""
    reason: str = ""
    """Why a branch is ruled out, or what an undecided one lacks."""
    missing: str = ""
    """For an undecided leaf: the override or variable that would record what is missing."""
    children: "tuple[WordedBranch, ...]" = ()


def worded(branch: Branch) -> WordedBranch:
    """Return the branch and all below it with their words."""
    words = _of_gate(branch) if branch.gate else _of_leaf(branch)
    children = tuple(map(worded, branch.children))
    return WordedBranch(branch.id, branch.title, branch.gate, branch.status, **words, children=children)


def _of_leaf(leaf: Branch) -> dict[str, str]:
    if not leaf.findings:
        return {"reason": _TEXTS["no_finding"]}
    text = text_of(leaf.findings[0])
    others = sum(finding.verdict == "confirmed" for finding in leaf.findings[1:])
    measured = text.measured + (_TEXTS["others"].format(others=others) if others else "")
    reason = "" if leaf.status == "confirmed" else text.summary
    return {"measured": measured, "reason": reason, "missing": text.missing}


def _of_gate(gate: Branch) -> dict[str, str]:
    same = [child.title for child in gate.children if child.status == gate.status]
    branches = f"{len(gate.children)} {'branch' if len(gate.children) == 1 else 'branches'}"
    if gate.status != "ruled_out":
        return {"measured": _TEXTS["of_status"].format(same=len(same), branches=branches, status=gate.status)}
    row = "ruled_out_by_one" if gate.gate == "and" else "ruled_out"
    return {"reason": _TEXTS[row].format(title="".join(same[:1]), branches=branches)}
