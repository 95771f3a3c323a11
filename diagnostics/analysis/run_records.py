"""What a dtk run recorded of itself: the mesh in its manifest, the names of its groups, and its metrics."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace as with_degrees
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.findings import Finding, Group
from diagnostics.contract.mesh import DATA, NUMBERED, ORDER, Mesh
from diagnostics.evidence.budget import disk_bytes
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import MOST_RANKS, Evidence, Problem, integer
from diagnostics.evidence.readers import step_records


def joint_group(mesh: Mesh, dimension: str, ranks: Iterable[int]) -> Group:
    """Return the group of these ranks along a dimension; if they are in several, all members and the number."""
    groups = sorted({tuple(mesh.group(dimension, rank)) for rank in ranks})
    members = tuple(sorted(rank for group in groups for rank in group))
    name = group_name(mesh, members, dimension) if len(groups) == 1 else f"{len(groups)} {dimension} groups"
    return Group(dimension, members, name)


def group_name(mesh: Mesh, ranks: Collection[int], of: str = "") -> str:
    """Return a name such as `tp group 3 of stage 1`; empty if the ranks do not form a single group.

    `of` is "ep" for ranks known to share experts, which a group along another dimension may also do.
    """
    first, world = min(ranks, default=-1), range(mesh.world_size)
    along = [name for name in ORDER if len({mesh.index(name, rank) for rank in ranks}) > 1]
    if not along or not world.start <= first <= max(ranks) < world.stop or ("pp" in along and along != ["pp"]):
        return ""
    stage = f" of stage {mesh.index('pp', first)}" if mesh.pp > 1 and "pp" not in along else ""
    number, fixed = 0, [name for name in ORDER if name not in along and name != "pp"]
    for name in fixed:
        number = number * mesh.size(name) + mesh.index(name, first)
    several = any(mesh.size(name) > 1 for name in fixed)
    dimension = "dp" if {*along} == {*DATA} else " x ".join(along)
    if of == "ep" or len({*ranks}) < prod(mesh.size(name) for name in along):
        if {*ranks} != {*mesh.group("ep", first)}:
            return ""
        dimension = "ep"
        number = mesh.index("expert_replicate", first) * mesh.expert_shard + mesh.index("expert_shard", first)
        several = mesh.world_size > mesh.ep * mesh.pp
    return f"{dimension} group{f' {number}' if several else ''}{stage}"


def layout(evidence: Evidence) -> Mesh | None:
    """Return the layout of a dtk run; None for other jobs, runs that did not record it, and damaged records."""
    return None if evidence.run is None else recorded_layout(evidence.run.manifest, evidence.world_size)


def recorded_layout(manifest: Mapping[str, Any], world_size: int | None) -> Mesh | None:
    """Return the layout recorded in a manifest; None unless it is complete and has `world_size` ranks."""
    recorded = mesh if isinstance(mesh := manifest.get("mesh"), dict) else {}
    sizes = {name: integer(recorded.get(name), 1, MOST_RANKS + 1) for name in ORDER}
    degrees = {name: size for name, size in sizes.items() if size is not None}
    numbered = recorded.get("order", [*ORDER])
    innermost = next((name for name, order in NUMBERED.items() if [*order] == numbered), None)
    if innermost is None or len(degrees) < len(ORDER) or prod(degrees.values()) != world_size:
        return None
    whole, ep = Mesh(**degrees, innermost=innermost), integer(recorded.get("ep"), 1, MOST_RANKS + 1) or 1
    return whole if whole.divided_by_ep % ep else with_degrees(whole, ep=ep)


def named(evidence: Evidence, findings: Collection[Finding]) -> list[Finding]:
    """Return the findings with their groups named after the layout."""
    mesh = layout(evidence)
    if mesh is None or (mesh.ep == 1 and mesh.world_size in (mesh.dp_shard, mesh.dp_replicate)):
        return list(findings)  # With data parallelism alone there is only one group.
    return [_named(each, mesh, each.group) if each.group is not None else each for each in findings]


def _named(finding: Finding, mesh: Mesh, group: Group) -> Finding:
    if group.name in (*ORDER, "ep"):  # Made, and so named, by `joint_group`.
        return finding
    dimension = (group.desc or group.name).removeprefix("mesh_")
    return replace(finding, group=replace(group, desc=group_name(mesh, group.ranks, dimension) or group.desc))


class Figures(Struct, frozen=True):
    """The metrics of a run, in the form that causes use."""

    evidence: Evidence
    metrics: Metrics | None
    """None if metrics.jsonl is missing or damaged."""


def read(evidence: Evidence) -> Figures:
    """Return the content of the run's metrics.jsonl; a file without any step becomes a problem under coverage."""
    if evidence.run is None:
        return Figures(evidence, None)
    recorded = next((fact.fields["metrics"] for fact in evidence.facts if fact.kind == step_records.METRICS), None)
    path = RunPaths(evidence.run.root).metrics
    file = evidence.relative(path)
    if recorded is None and disk_bytes(path) and all(problem.file != file for problem in evidence.problems):
        evidence.problems.append(Problem(step_records.KIND, file, "no_steps"))
    return Figures(evidence, recorded)
