"""Classes of ranks: of a job of thousands of ranks one of each class is simulated. A class is a place at which code may
branch: the first and last rank of the job, of a node and of each mesh dimension, and every rank that is named.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from diagnostics.contract.findings import Group
from dtk.preflight.calls import Record

ALL_UP_TO = 256
"""Ranks of a job up to which every one is simulated unless something else is asked for."""
_DEFAULT = "0"
"""torch's name of the group of all ranks; those made later are numbered on."""


def representatives(
    world_size: int,
    local_size: int,
    degrees: Mapping[str, int] | None = None,
    named: Iterable[int] = (),
    apart: Collection[str] = (),
) -> dict[int, int]:
    """Return every rank -> the rank that is simulated in its place.

    Args:
        world_size: ranks of the job.
        local_size: ranks per node.
        degrees: dimension of the mesh -> its size, outermost first.
        named: ranks that differ by name, such as that of a fault.
        apart: which of the degrees have a class for each place, as stages of a pipeline do different things.
    """
    own = {0, world_size - 1, *named}
    first: dict[tuple[str, ...], int] = {}
    stands_for = {}
    for rank in range(world_size):
        places, rest = [_place(rank % local_size, local_size)], rank
        for name, degree in reversed(list((degrees or {}).items())):
            rest, index = divmod(rest, degree)
            places.append(str(index) if name in apart else _place(index, degree))
        stands_for[rank] = rank if rank in own else first.setdefault(tuple(places), rank)
    return stands_for


def _place(index: int, size: int) -> str:
    return "first" if index == 0 else "last" if index == size - 1 else "middle"


def spread(records: Mapping[int, Record], stands_for: Mapping[int, int]) -> dict[int, Record]:
    """Return the records of all ranks, from those that were simulated.

    A rank runs the program of the one that stands for it, over the groups at the same place among its own; whom it
    sends to is a place in such a group.
    """
    made = next(iter(records.values())).made
    belongs: dict[int, list[int]] = {}
    for index, (ranks, _) in enumerate(made):
        for rank in ranks:
            belongs.setdefault(rank, []).append(index)

    def same_place(group: Group, simulated: int, rank: int) -> Group:
        if group.name == _DEFAULT:
            return group
        if not group.name.isdecimal():  # Made by its members alone, at the same distances from them everywhere.
            ranks = tuple(member + rank - simulated for member in group.ranks)
            return Group(f"{group.desc} {ranks}", ranks, group.desc)
        index = belongs[rank][belongs[simulated].index(int(group.name) - 1)]
        return Group(str(index + 1), made[index][0], group.desc)

    programs = {}
    for rank, record in records.items():
        programs[rank] = program = record.program
        if any(len(entry.sent) > 1 or len(entry.taken) > 1 for entry in program.entries):
            # Lengths that differ by member: those of one rank say nothing of another.
            entries = tuple(entry._replace(sent=(), taken=()) for entry in program.entries)
            programs[rank] = replace(program, entries=entries)
    spread_out = {}
    for rank, other in sorted(stands_for.items()):
        groups = tuple(same_place(group, other, rank) for group in records[other].groups)
        spread_out[rank] = replace(records[other], rank=rank, program=programs[other], groups=groups, made=made)
    return spread_out


def replaceable(records: Iterable[Record], apart: bool = False) -> bool:
    """Whether one rank can stand for another.

    Args:
        records: of those that were simulated.
        apart: whether each place has a class of its own along dimensions whose ranks send to each other; else nobody
            may send to a rank by its number.
    """
    simulated = list(records)
    for record in simulated:
        numbered = all(group.name.isdecimal() for group in record.groups)
        sent_in = {record.groups[entry.group].name for entry in record.program.entries if entry.p2p}
        if (
            record.made != simulated[0].made
            or not (apart or numbered)
            or (sent_in and not apart)
            or _DEFAULT in sent_in
        ):
            return False
    return True
