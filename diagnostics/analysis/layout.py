"""The mesh in a run's manifest: ranks and names of its groups, as `dtk.parallel.mesh` makes them (a test compares)."""

from collections.abc import Collection, Iterable, Mapping
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.contract.findings import Finding, Group
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.values import MOST_RANKS, integer

ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Dimensions whose sizes multiply to the world size, outermost first (`dtk.parallel.mesh`)."""
MODEL = ("tp", "cp", "ep", "pp")
"""Dimensions that split the model or its activations: their ranks exchange neither parameters nor gradients."""


class Layout(Struct, frozen=True):
    """Degrees of parallelism of a run."""

    degrees: Mapping[str, int]
    """Degree of each dimension, in the order in which ranks are numbered, outermost first."""
    ep: int = 1
    """Consecutive ranks of a stage that share the experts of a block; they take no ranks of their own."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.degrees.values())

    def place(self, rank: int) -> dict[str, int]:
        """Return a rank's index along each dimension."""
        places = {}
        for name in reversed([*self.degrees]):
            rank, places[name] = divmod(rank, self.degrees[name])
        return places

    def group(self, dimension: str, rank: int) -> tuple[int, ...]:
        """Return the ranks in the group of a rank along a dimension or `ep`, ascending."""
        if dimension == "ep":
            first, turns = self._expert_group(rank) * self.ep, (stride := self._stride("pp")) * self.degrees["pp"]
            own = self.place(rank)["pp"] * stride
            return tuple(own + i // stride * turns + i % stride for i in range(first, first + self.ep))
        stride = self._stride(dimension)
        first = rank - self.place(rank)[dimension] * stride
        return tuple(first + i * stride for i in range(self.degrees[dimension]))

    def groups(self, dimension: str, ranks: Iterable[int]) -> Group:
        """Return the group of these ranks along a dimension; if they are in several, all members and the number."""
        groups = sorted({self.group(dimension, rank) for rank in ranks})
        members = tuple(sorted(rank for group in groups for rank in group))
        name = self.name(members, dimension) if len(groups) == 1 else f"{len(groups)} {dimension} groups"
        return Group(dimension, members, name)

    def _stride(self, dimension: str) -> int:
        return prod([*self.degrees.values()][[*self.degrees].index(dimension) + 1 :])

    def _expert_group(self, rank: int) -> int:
        stride = self._stride("pp")
        return (rank // (stride * self.degrees["pp"]) * stride + rank % stride) // self.ep

    def name(self, ranks: Collection[int], of: str = "") -> str:
        """Return a name such as `tp group 3 of stage 1`; empty if the ranks do not form a single group.

        `of` is "ep" for ranks known to share experts, which a group along another dimension may also do.
        """
        world_size = self.world_size
        places = [self.place(rank) for rank in ranks if 0 <= rank < world_size]
        along = [name for name in ORDER if len({place[name] for place in places}) > 1]
        if not along or len(places) < len(ranks) or not ("pp" not in along or along == ["pp"]):
            return ""
        stage = f" of stage {places[0]['pp']}" if self.degrees["pp"] > 1 and "pp" not in along else ""
        number, fixed = 0, [name for name in ORDER if name not in along and name != "pp"]
        for name in fixed:
            number = number * self.degrees[name] + places[0][name]
        several = any(self.degrees[name] > 1 for name in fixed)
        dimension = "dp" if set(along) == {"dp_replicate", "dp_shard"} else " x ".join(along)
        if of == "ep" or len({*ranks}) < prod(self.degrees[name] for name in along):
            if {*ranks} != {*self.group("ep", min(ranks))}:
                return ""
            dimension, number = "ep", self._expert_group(min(ranks))
            several = self.world_size > self.ep * self.degrees["pp"]
        return f"{dimension} group{f' {number}' if several else ''}{stage}"


def layout(evidence: Evidence) -> Layout | None:
    """Return the layout of a dtk run; None for other jobs, runs that did not record it, and damaged records."""
    return None if evidence.run is None else recorded_layout(evidence.run.manifest, evidence.world_size)


def recorded_layout(manifest: Mapping[str, Any], world_size: int | None) -> Layout | None:
    """Return the layout recorded in a manifest; None unless it is complete and has `world_size` ranks."""
    recorded = mesh if isinstance(mesh := manifest.get("mesh"), dict) else {}
    order = recorded.get("order")
    order = order if isinstance(order, list) and len(order) == len(ORDER) and {*map(str, order)} == {*ORDER} else ORDER
    sizes = {name: integer(recorded.get(name), 1, MOST_RANKS + 1) for name in order}
    degrees = {name: size for name, size in sizes.items() if size is not None}
    whole = len(degrees) == len(ORDER) and prod(degrees.values()) == world_size
    if not whole:
        return None
    ep = integer(recorded.get("ep"), 1, MOST_RANKS + 1) or 1
    return Layout(degrees, 1 if prod(degrees.values()) // degrees["pp"] % ep else ep)


def named(evidence: Evidence, findings: Collection[Finding]) -> list[Finding]:
    """Return the findings with their groups named after the layout."""
    mesh = layout(evidence)
    if mesh is None or (mesh.ep == 1 and mesh.world_size in (mesh.degrees["dp_shard"], mesh.degrees["dp_replicate"])):
        return list(findings)  # With data parallelism alone there is only one group.
    return [_named(each, mesh, each.group) if each.group is not None else each for each in findings]


def _named(finding: Finding, mesh: Layout, group: Group) -> Finding:
    if group.name in (*mesh.degrees, "ep"):  # Made, and so named, by `Layout.groups`.
        return finding
    dimension = (group.desc or group.name).removeprefix("mesh_")
    return replace(finding, group=replace(group, desc=mesh.name(group.ranks, dimension) or group.desc))
