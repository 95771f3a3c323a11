"""How places, costs and statuses are put into words, the same in every form of the report."""

from collections.abc import Sequence
from dataclasses import replace

from diagnostics.findings import Cost, Finding, Status, Where
from diagnostics.report.model import Coverage, Report
from diagnostics.runs_text import clean
from diagnostics.tree.arbitrate import SURE
from diagnostics.words import bytes_text, numbers_text, ranks_text

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
STATUSES: dict[Status, str] = {"confirmed": "confirmed", "undecided": "undecided", "ruled_out": "ruled out"}


def blame_text(finding: Finding) -> str:
    """Who is to blame, who suffers, in which group, at which position and step."""
    parts = [ranks_text(finding.ranks) or "no rank to blame"]
    if finding.victims:
        parts[0] += f" (victims: {ranks_text(finding.victims)})"
    if finding.group:
        parts.append(f"group {group_text(finding)}")
    if finding.position is not None:
        parts.append(f"position {finding.position}")
    if finding.step is not None:
        parts.append(f"step {finding.step}")
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
    does = f", {clean(where.does)}" if where.does else ""
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
    """With a capital at its beginning, for a heading."""
    return text[:1].upper() + text[1:]


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


def missing(report: Report) -> list[tuple[str, list[str]]]:
    """What would record the evidence that is missing, and the causes that it would decide.

    First what concerns the kind of trouble that was found, then what decides most.
    """
    causes: dict[str, list[str]] = {}
    for decided in report.findings:
        if decided.finding.status == "undecided" and decided.finding.missing:
            causes.setdefault(decided.finding.missing, []).append(decided.finding.cause)
    family = report.root_causes[0].cause.split(".")[0] if report.root_causes else "hang"
    near = {what: any(cause.startswith(f"{family}.") for cause in named) for what, named in causes.items()}
    return sorted(causes.items(), key=lambda one: (not near[one[0]], -len(one[1]), one[0]))
