"""The mesh of a dtk run as its manifest records it: which ranks form a group along a dimension, and its name."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from diagnostics.contract.findings import Finding
from diagnostics.evidence.model import Evidence

ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Dimensions whose sizes multiply to world_size, outermost first (`dtk.parallel.mesh`)."""
MODEL = ("tp", "cp", "ep", "pp")
"""Dimensions that divide the model or its activations: what their ranks send is no parameter and no gradient."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism."""

    degrees: Mapping[str, int]

    def place(self, rank: int) -> dict[str, int]:
        """Return a rank's index along each dimension."""
        found = {}
        for name in reversed(ORDER):
            rank, found[name] = divmod(rank, self.degrees[name])
        return found

    def group(self, dimension: str, rank: int) -> tuple[int, ...]:
        """Return the ranks of a rank's group along a dimension, ascending."""
        stride = prod(self.degrees[name] for name in ORDER[ORDER.index(dimension) + 1 :])
        first = rank - self.place(rank)[dimension] * stride
        return tuple(first + i * stride for i in range(self.degrees[dimension]))

    def name(self, ranks: Collection[int]) -> str:
        """Return `tp group 3 of stage 1` for ranks of one group; empty where they are of no single one."""
        places = [self.place(rank) for rank in ranks if 0 <= rank < prod(self.degrees.values())]
        along = [name for name in ORDER if len({place[name] for place in places}) > 1]
        if not along or len(places) < len(ranks) or not ("pp" not in along or along == ["pp"]):
            return ""
        number, fixed = 0, [name for name in ORDER if name not in along and name != "pp"]
        for name in fixed:
            number = number * self.degrees[name] + places[0][name]
        several = any(self.degrees[name] > 1 for name in fixed)
        dimension = "dp" if set(along) == {"dp_replicate", "dp_shard"} else " x ".join(along)
        stage = f" of stage {places[0]['pp']}" if self.degrees["pp"] > 1 and "pp" not in along else ""
        return f"{dimension} group{f' {number}' if several else ''}{stage}"


def layout(evidence: Evidence) -> Layout | None:
    """Return the layout of a dtk run; None for other jobs, runs that did not record it, and damaged records."""
    mesh: Any = evidence.run.manifest.get("mesh") if evidence.run is not None else None
    recorded = mesh if isinstance(mesh, dict) else {}
    degrees = {name: size for name in ORDER if isinstance(size := recorded.get(name), int) and size > 0}
    whole = len(degrees) == len(ORDER) and prod(degrees.values()) == evidence.world_size
    return Layout(degrees) if whole else None


def named(evidence: Evidence, findings: Collection[Finding]) -> list[Finding]:
    """Return the findings, whose groups are called as the layout calls them."""
    mesh = layout(evidence)
    if mesh is None or prod(mesh.degrees.values()) in (mesh.degrees[name] for name in ("dp_shard", "dp_replicate")):
        return list(findings)  # Data parallelism alone: there is one group.
    groups = [(one, one.group, mesh.name(one.group.ranks) if one.group else "") for one in findings]
    return [replace(one, group=replace(group, desc=name)) if name and group else one for one, group, name in groups]
