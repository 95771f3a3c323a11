"""How places, costs and statuses are put into words, the same in every form of the report."""

from collections.abc import Sequence
from dataclasses import replace

from diagnostics.contract.findings import Cost, Finding, Status, Where
from diagnostics.contract.formatting import bytes_text, numbers_text, ranks_text
from diagnostics.report import wording
from diagnostics.report.model import Coverage, Decided, Report
from diagnostics.runs.text import clean
from diagnostics.tree.arbitrate import SURE
from diagnostics.tree.evaluate import Branch

OUTCOMES = {
    "healthy": "HEALTHY",
    "hung": "HUNG",
    "oom": "OUT OF MEMORY",
    "slow": "SLOW",
    "crashed": "CRASHED",
    "diverged": "DIVERGED",
    "at_risk": "AT RISK",
    "undecided": "UNDECIDED",
}
_FAMILIES = {
    "hang": "hangs and crashes",
    "memory": "memory",
    "overlap": "speed",
    "numeric": "numerics",
    "env": "the environment",
}
_TAKEN_FOR = {
    "hang": {"flight", "ring", "stacks", "error", "log"},
    "memory": {"snapshot", "timeline"},
    "overlap": {"trace", "nsys"},
}
"""Kind of trouble -> evidence that is mostly gathered of it."""
STATUSES: dict[Status, str] = {"confirmed": "confirmed", "undecided": "undecided", "ruled_out": "ruled out"}


def blame_text(finding: Finding) -> str:
    """Who is to blame, who suffers, in which step, in which group and at which position."""
    parts = [ranks_text(finding.ranks) or "no rank to blame"]
    if finding.victims:
        parts[0] += f" (victims: {ranks_text(finding.victims)})"
    if finding.step is not None:
        parts.append(f"step {finding.step}")
    if finding.group:
        parts.append(f"group {group_text(finding)}")
    if finding.position is not None:
        parts.append(f"position {finding.position}")
    return ", ".join(parts)


def group_text(finding: Finding) -> str:
    """The group's description or name, and its ranks."""
    group = finding.group
    if group is None:
        return ""
    name = clean(group.desc or group.name) or "default"
    return f"{name} [{numbers_text(group.ranks)}]" if group.ranks else name


def place_text(where: Where) -> str:
    """`train.py:12 in log_metrics`."""
    function = f" in {clean(where.function)}" if where.function else ""
    return f"{clean(where.file)}:{where.line}{function}"


def where_text(where: Where) -> str:
    """`rank 0: train.py:12 in log_metrics, all_reduce [4] float32`."""
    rank = "" if where.rank is None else f"rank {where.rank}: "
    does = f", {wording.does(where)}" if where.does else ""
    return f"{rank}{place_text(where)}{does}"


def side_text(ranks: Sequence[int], where: Where) -> str:
    """A place with all ranks that stand there: `ranks 1-3: train.py:12 in log_metrics, all_reduce [4] float32`."""
    if not ranks:
        return where_text(where)
    return f"{ranks_text(ranks)}: {where_text(replace(where, rank=None))}"


def ranks_cells(one: Coverage) -> tuple[str, str]:
    """Ranks with a kind of evidence and ranks that should have it; dashes where the evidence names none."""
    if not one.ranks_present and not one.ranks_expected:
        return "-", "-"
    return str(one.ranks_present), str(max(one.ranks_present, one.ranks_expected))


def sides(finding: Finding) -> list[tuple[tuple[int, ...], Where]]:
    """The places of a finding, one per distinct place with all ranks that stand there; blamed ranks first."""
    ranks: dict[tuple[bool, str, int, str, str], list[int]] = {}
    first: dict[tuple[bool, str, int, str, str], Where] = {}
    for where in finding.where:
        blamed = where.rank in finding.ranks
        key = (not blamed, where.file, where.line, where.function, where.does)
        first.setdefault(key, where)
        if where.rank is not None:
            ranks.setdefault(key, []).append(where.rank)
    return [(tuple(ranks.get(key, ())), first[key]) for key in sorted(first, key=lambda key: key[0])]


def cost_text(cost: Cost | None) -> str:
    """`5.2 s blocked`, `3.1 GiB`; nothing without a cost."""
    if cost is None or cost.unit == "none":
        return ""
    if cost.unit == "bytes":
        return bytes_text(cost.value)
    return f"{cost.value:.3g} {cost.unit}" if cost.value < 1000 else f"{cost.value:,.0f} {cost.unit}"


def sentence(text: str) -> str:
    """With a capital at its beginning, for a heading; a name such as `world_size` stays as it is typed."""
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def edge_notes(branch: Branch) -> list[str]:
    """What was measured at a branch, and why it is pruned or open where that says more."""
    alike = branch.reason.rstrip(".").casefold() == branch.measured.rstrip(".").casefold()
    return [note for note in (branch.measured, "" if alike else branch.reason) if note]


def event(report: Report, tree: str) -> str:
    """A tree's top event in words."""
    return next((branch.title for branch in report.tree.children if branch.id == tree), tree)


def headline(report: Report) -> str:
    """The cause in words, or why there is none."""
    if report.root_causes:
        first = report.root_causes[0].cause
        unnoticed = report.outcome == "diverged" and first.startswith("hang.")
        return f"{report.title(first)}, unnoticed: the run ended" if unnoticed else report.title(first)
    if report.healthy:
        counts = count(report)
        return f"no cause found: {counts['ruled_out']} ruled out, {counts['undecided']} undecided"
    if any(is_suspicion(decided.finding) for decided in report.findings):
        return "something went wrong; there is a suspicion, but no cause is sure"
    if report.standing:
        return report.standing
    return "something went wrong, or too little was left behind to say; no cause is confirmed"


def count(report: Report) -> dict[Status, int]:
    """Findings of each status."""
    table: dict[Status, int] = {"confirmed": 0, "undecided": 0, "ruled_out": 0}
    for decided in report.findings:
        table[decided.finding.status] += 1
    return table


def is_suspicion(finding: Finding) -> bool:
    """Confirmed, but not surely enough to be a root cause."""
    return finding.status == "confirmed" and finding.confidence < SURE


def family(cause: str) -> str:
    """Kind of trouble: the first word of a cause's id."""
    return cause.partition(".")[0]


def families(report: Report) -> frozenset[str]:
    """The kinds of trouble that the report is about; what is undecided of others has nothing to do with it.

    Those of the root causes, else of the suspicions, else what the evidence that was left behind is taken for.
    """
    suspected = [one.finding for one in report.findings if is_suspicion(one.finding)]
    found = {family(one.cause) for one in report.root_causes or suspected}
    if found or report.healthy:
        return frozenset(found)
    kinds = {one.kind for one in report.coverage}
    for kind, readable in _TAKEN_FOR.items():
        if kinds & readable:
            return frozenset((kind,))
    return frozenset(("hang",))


def undecided(report: Report) -> tuple[list[Decided], list[Decided]]:
    """Undecided causes: those of the kind of trouble that was found, and all others."""
    near = families(report)
    every = [one for one in report.findings if one.finding.status == "undecided"]
    return [one for one in every if family(one.finding.cause) in near], [
        one for one in every if family(one.finding.cause) not in near
    ]


def others_text(others: Sequence[Decided]) -> str:
    """`37 causes of memory, numerics and speed could not be decided`; nothing without one."""
    if not others:
        return ""
    kinds = sorted({_FAMILIES.get(name, name) for name in (family(one.finding.cause) for one in others)})
    named = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    return f"{len(others)} {'cause' if len(others) == 1 else 'causes'} of {named} could not be decided"


def missing(causes: Sequence[Decided]) -> list[tuple[str, list[str]]]:
    """What would record the evidence that is missing, and the causes that it would decide; what decides most first."""
    table: dict[str, list[str]] = {}
    for one in causes:
        if lacks := wording.missing(one.finding):
            table.setdefault(lacks, []).append(one.finding.cause)
    return sorted(table.items(), key=lambda one: (-len(one[1]), one[0]))
