"""Selects the root causes among confirmed findings, by the relations in the trees. Victims are never blamed.

A finding is a consequence when another one explains it and is not itself explained by it; two that explain each other
are a tie, and both stay. What costs much more than the finding that would explain it has a reason of its own.
"""

from collections.abc import Mapping, Sequence
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.causes.declared import Texts
from diagnostics.contract.causes import Relation
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import CERTAIN, Basis, Finding, Outcome
from diagnostics.tree.model import Leaf, Tree, leaves

_TEXTS, _BASES = Texts(__file__), get_args(Basis)
_EXCLUDED: frozenset[Outcome] = frozenset(table_beside(__file__)["finished_excludes"])
SHARE = 0.33  # A cause that costs less than this share of another finding is not why that one is there.
MINOR = 0.1
"""Chosen: share of a step below which a slow cause comes after a measured risk that ends the job, such as a leak."""
_ORDER: dict[Outcome, int] = {"crashed": 0, "hung": 0, "oom": 0, "diverged": 1, "slow": 2, "at_risk": 5}


class Verdict(Struct, frozen=True):
    """Result of arbitration."""

    roots: tuple[Finding, ...]
    """Root causes, the costliest first."""
    outcome: Outcome | None
    """Outcome of the first root cause; None if there is none."""
    explained: dict[int, tuple[str, ...]]
    """Index of a finding that is a consequence -> the root causes that explain it."""


def arbitrate(trees: Sequence[Tree], findings: Sequence[Finding]) -> Verdict:
    """Return the root causes among the confirmed findings, by the rules of all trees."""
    sure = [n for n, finding in enumerate(findings) if finding.verdict == "confirmed"]
    relations = _Relations(trees)
    edges = {a: {b for b in sure if a != b and relations.hold(findings[a], findings[b])} for a in sure}
    reach = {a: _reachable(a, edges) for a in sure}
    above = {b: [a for a in sure if b in reach[a] and a not in reach[b]] for b in sure}
    roots = [n for n in sure if not above[n]]
    explained = {b: tuple(sorted({findings[a].cause for a in above[b] if a in roots})) for b in sure if above[b]}
    leaf_of = all_leaves(trees)
    effect: dict[int, Outcome] = {}
    for n in roots:  # Its own outcome, but a mere risk counts as what it led to.
        own, others = leaf_of[findings[n].cause].outcome, [leaf_of[findings[m].cause].outcome for m in reach[n]]
        effect[n] = min(others, key=_ORDER.__getitem__, default=own) if own == "at_risk" else own
    roots.sort(key=lambda n: (_order(effect[n], findings[n]), *severity(findings[n])))
    return Verdict(tuple(findings[n] for n in roots), effect[roots[0]] if roots else None, explained)


def settled(trees: Sequence[Tree], findings: Sequence[Finding], *, finished: bool = False) -> list[Finding]:
    """Return the findings; those that are open or unsure are ruled out if causes with a better basis explain them.

    Of an open one of which they explain only a part, the ranks that still wait for an unknown reason remain. That the
    run `finished` rules out the open causes of other ends.
    """
    if finished:
        ends = {cause for cause, leaf in all_leaves(trees).items() if leaf.outcome in _EXCLUDED}
        ends -= {finding.cause for finding in findings if finding.status != "undecided"}
        findings = [finding for finding in findings if finding.cause not in ends]
        findings += [replace(_TEXTS.ruled_out("finished"), cause=cause) for cause in sorted(ends)]
    sure = [(finding, {*finding.ranks, *finding.victims}) for finding in findings if finding.verdict == "confirmed"]
    relations = _Relations(trees)

    def settle(finding: Finding) -> Finding:
        if finding.verdict != "undecided" or finding.basis == "records":
            return finding
        unexplained, by = set(finding.victims), set[str]()
        for root, ranks in sure:
            accounted = ranks or set(finding.victims)
            part = tuple(rank for rank in finding.victims if rank in accounted)
            if bool(part) == bool(finding.victims) and relations.hold(root, replace(finding, victims=part)):
                unexplained -= accounted
                by.add(root.cause)
        if by and not unexplained:
            return replace(_TEXTS.ruled_out("explained", by=sorted(by)), cause=finding.cause)
        return replace(finding, victims=tuple(sorted(unexplained))) if finding.status == "undecided" else finding

    return [settle(finding) for finding in findings]


def _order(effect: Outcome, finding: Finding) -> int:
    """Return the place of a root cause among the others: a certain risk comes before a slow cause of little cost."""
    if effect == "slow" and finding.cost is not None and 0 < finding.cost.share < MINOR:
        return 4
    return 3 if effect == "at_risk" and finding.cost is not None and finding.confidence >= CERTAIN else _ORDER[effect]


def severity(finding: Finding) -> tuple[float, float, str, tuple[int, ...]]:
    """Return a key that sorts the causes of one outcome by their cost, then by their confidence."""
    value = finding.cost.value if finding.cost else 0.0
    return -value, -finding.confidence, finding.cause, finding.ranks


def all_leaves(trees: Sequence[Tree]) -> dict[str, Leaf]:
    """Return cause -> leaf, from the first tree that contains it."""
    table: dict[str, Leaf] = {}
    for tree in trees:
        for leaf in leaves(tree.top):
            table.setdefault(leaf.cause, leaf)
    return table


class _Relations:
    """The rules, looked up once per pair of causes: findings can be many, causes are few."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self.rules = [rule for tree in trees for rule in tree.rules]
        self.of_pair: dict[tuple[str, str], frozenset[Relation]] = {}

    def hold(self, root: Finding, other: Finding) -> bool:
        """Return whether `other` is a consequence of `root`."""
        costs = (root.cost, other.cost)
        if costs[0] and costs[1] and costs[0].unit == costs[1].unit and costs[0].value < SHARE * costs[1].value:
            return False
        pair = root.cause, other.cause
        if pair not in self.of_pair:
            self.of_pair[pair] = frozenset(when for rule in self.rules if rule.matches(*pair) for when in rule.when)
        return any(_related(when, root, other) for when in self.of_pair[pair])


def _related(when: Relation, root: Finding, other: Finding) -> bool:
    if when == "any" or (other.status == "undecided" and when != "basis"):
        return other.status == "confirmed"
    if when == "ranks" and (other.ranks or root.ranks):
        return bool(other.ranks) and set(other.ranks) <= set(root.ranks)
    if when == "ranks":  # One record shows both, a file or the same line of a log: they concern one unidentified rank.
        return bool(set.intersection(*({(item.file, item.line) for item in each.evidence} for each in (root, other))))
    if when == "victims":
        return bool(other.ranks) and set(other.ranks) <= set(root.victims)
    if when == "tie":
        is_tie = not other.victims and root.confidence >= other.confidence
        return is_tie and bool(root.ranks) and set(root.ranks) < set(other.ranks)
    if when == "basis":
        accounted = {*root.ranks, *root.victims}
        is_better = _BASES.index(root.basis) < _BASES.index(other.basis) and bool(root.ranks or not other.ranks)
        return is_better and (not accounted or accounted >= {*other.ranks, *other.victims})
    if when == "recorded":
        return root.basis in ("records", "places") and other.confidence < CERTAIN
    concerned = {*other.ranks, *other.victims, *(other.group.ranks if other.group else ())}
    return not concerned or not root.ranks or bool(concerned & set(root.ranks))


def _reachable(start: int, edges: Mapping[int, set[int]]) -> set[int]:
    reached: set[int] = set()
    todo = [start]
    while todo:
        for following in edges[todo.pop()]:
            if following not in reached:
                reached.add(following)
                todo.append(following)
    return reached
