"""Classes of ranks: in a job of thousands of ranks one of each class is simulated. A class is a position at which code
may branch: the first and last rank of the job, of a node and of each mesh dimension, and every named rank.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from diagnostics.contract.findings import Group
from diagnostics.contract.mesh import Mesh
from dtk.preflight.calls import Record

ALL_UP_TO = 256  # Largest job of which every rank is simulated by default.
_ONE_RANK = Mesh()  # That of a script, which has no dimensions.
_DEFAULT = "0"  # torch's name of the group of all ranks; later groups have the following numbers.


def representatives(
    world_size: int, local_size: int, mesh: Mesh = _ONE_RANK, named: Iterable[int] = (), apart: Collection[str] = ()
) -> dict[int, int]:
    """Return a mapping from every rank to the rank that is simulated for it.

    `named` ranks are configured by number, such as that of a fault; of the dimensions `apart`, such as a pipeline's,
    each coordinate is a class.
    """
    own = {0, world_size - 1, *named}
    first: dict[tuple[str, ...], int] = {}
    stands_for = {}
    for rank in range(world_size):
        places = [_place(rank % local_size, local_size)]
        for name in mesh.order:
            index = mesh.index(name, rank)
            places.append(str(index) if name in apart else _place(index, mesh.size(name)))
        stands_for[rank] = rank if rank in own else first.setdefault(tuple(places), rank)
    return stands_for


def _place(index: int, size: int) -> str:
    return "first" if index == 0 else "last" if index == size - 1 else "middle"


def spread(records: Mapping[int, Record], stands_for: Mapping[int, int]) -> dict[int, Record]:
    """Return the records of all ranks, derived from those that were simulated.

    A rank runs the program of its representative over the groups with the same indices among its own; the peer of a
    send is a rank in such a group.
    """
    common = next(iter(records.values())).new_groups
    belongs: dict[int, list[int]] = {}
    for index, (ranks, _) in enumerate(common):
        for rank in ranks:
            belongs.setdefault(rank, []).append(index)

    def same_place(group: Group, simulated: int, rank: int) -> Group:
        if group.name == _DEFAULT:
            return group
        if not group.name.isdecimal():  # It is created by its members alone, at the same offsets from them everywhere.
            ranks = tuple(member + rank - simulated for member in group.ranks)
            return Group(f"{group.desc} {ranks}", ranks, group.desc)
        index = belongs[rank][belongs[simulated].index(int(group.name) - 1)]
        return Group(str(index + 1), common[index][0], group.desc)

    programs = {}
    for rank, record in records.items():
        programs[rank] = program = record.program
        if any(len(entry.sent) > 1 or len(entry.taken) > 1 for entry in program.entries):
            # Sizes that differ by member: those of one rank do not determine another's.
            entries = tuple(entry._replace(sent=(), taken=()) for entry in program.entries)
            programs[rank] = replace(program, entries=entries)
    spread_out = {}
    for rank, other in sorted(stands_for.items()):
        groups = tuple(same_place(group, other, rank) for group in records[other].groups)
        spread_out[rank] = replace(records[other], rank=rank, program=programs[other], groups=groups, new_groups=common)
    return spread_out


def replaceable(records: Iterable[Record], apart: bool = False) -> bool:
    """Return whether one rank can represent another.

    `apart`: each coordinate is a separate class along dimensions with point-to-point calls; otherwise no rank may send
    to a rank by its number.
    """
    simulated = list(records)
    for record in simulated:
        numbered = all(group.name.isdecimal() for group in record.groups)
        sent_in = {record.groups[entry.group].name for entry in record.program.entries if entry.p2p}
        if (
            record.new_groups != simulated[0].new_groups
            or not (apart or numbered)
            or (sent_in and not apart)
            or _DEFAULT in sent_in
        ):
            return False
    return True
