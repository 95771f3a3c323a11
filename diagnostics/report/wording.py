"""Words for the parts of a finding other than its own text (`text_of`), and for the branches of the fault tree."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from diagnostics.causes.registry import by_id
from diagnostics.contract.causes import GateKind
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import Cost, Finding, Status, Where, text_of
from diagnostics.contract.formatting import bytes_text, filled, numbers_text, ranks_text
from diagnostics.report.document import Span, Text
from diagnostics.tree.model import Branch

_TEXTS: dict[str, str] = table_beside(__file__)["texts"]


def texts_beside(module: str) -> Callable[..., str]:
    """Return a function that fills a row of the `texts` in the YAML file next to a module with figures."""
    rows = table_beside(module)["texts"]
    return lambda row, /, **figures: filled(rows[row], figures)


def blame(finding: Finding) -> str:
    """Return the culprits, the victims, the step, the group and the position."""
    cause = by_id().get(finding.cause)
    nobody = "a rank that no line names" if cause is not None and cause.of_one_rank else "no rank"
    parts = [f"{'one side of ' if finding.tie and finding.ranks else ''}{ranks_text(finding.ranks) or nobody}"]
    if finding.victims:
        parts[0] += f" (victims: {ranks_text(finding.victims)})"
    if finding.step is not None:
        parts.append(f"step {finding.step}")
    if finding.group:
        ranks = f" [{numbers_text(finding.group.ranks)}]" if finding.group.ranks else ""
        name = finding.group.desc or finding.group.name or "default"
        parts.append(f"{'' if ' group' in name else 'group '}{name}{ranks}")
    if finding.position is not None:
        parts.append(f"position {finding.position:,}")
    return ", ".join(parts)


def place(where: Where) -> str:
    """Return `train.py:12 in log_metrics`."""
    return f"{where.file}:{where.line}{f' in {where.function}' if where.function else ''}"


def place_of(ranks: Sequence[int], where: Where) -> tuple[Text, Text]:
    """Return a source location with its ranks and their activity, and the same without the activity."""
    tail = f":{where.line}{f' in {where.function}' if where.function else ''}"
    tail += f" ({ranks_text(ranks)})" if ranks else ""
    brief = (Span(where.file, elastic=True), tail)
    return ((*brief, f", {where.does}") if where.does else brief), brief


def sides(finding: Finding) -> list[tuple[tuple[int, ...], Where]]:
    """Return the distinct source locations of a finding, each with its ranks; culprits first."""
    by_place: dict[tuple[bool, str, int, str, str], list[Where]] = {}
    for where in finding.where:
        key = (where.rank not in finding.ranks, where.file, where.line, where.function, str(where.does))
        by_place.setdefault(key, []).append(where)
    ordered = sorted(by_place.items(), key=lambda item: item[0][0])
    return [(tuple(where.rank for where in alike if where.rank is not None), alike[0]) for _, alike in ordered]


def cost(value: Cost | None) -> str:
    """Return `5.2 s blocked`, `3.1 GiB`; empty without a cost."""
    if value is None or value.unit == "none":
        return ""
    if value.unit == "bytes":
        return bytes_text(value.value)
    unit = value.unit.replace("steps", "step") if value.value == 1 else value.unit
    return f"{value.value:.3g} {unit}" if value.value < 1000 else f"{value.value:,.0f} {unit}"


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
