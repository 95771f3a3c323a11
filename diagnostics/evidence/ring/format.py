"""The format of the ring of collectives that a dtk rank keeps in a mapped file, and its parser."""

import itertools
import re
import struct

from msgspec import Struct

from diagnostics.evidence.model import MAX_MEMBERS, MOST_RANKS

_RUN = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?(?:/(\d{1,7}))?", re.ASCII)


def group_key(name: str, ranks: tuple[int, ...], generation: int) -> str:
    """Return a name for a group that is the same on all its ranks and unique to the group."""
    from hashlib import blake2b  # Here, as it loads OpenSSL, which a diagnosis without rings does not need.

    return f"{generation}:{name}:{blake2b(repr(ranks).encode(), digest_size=4).hexdigest()}"


def parse_ranks(text: str, limit: int = MAX_MEMBERS) -> tuple[int, ...]:
    """Parse `0-3,8,16-48/8` to 0, 1, 2, 3, 8, 16, 24, ... Empty if invalid or if there are more than `limit` ranks."""
    ranks: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match is None:
            return ()
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step < 1 or last >= MOST_RANKS or (last - first) // step + len(ranks) >= limit:
            return ()
        ranks.extend(range(first, last + 1, step))
    return tuple(ranks)


def format_ranks(ranks: tuple[int, ...]) -> str:
    """Format 0, 1, 2, 3, 8 as `0-3,8`; a run with a stride is `0-56/8`."""
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 1
    if step > 1 and all(b - a == step for a, b in itertools.pairwise(ranks)):
        return f"{ranks[0]}-{ranks[-1]}/{step}"
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


MAGIC = b"dtk-ring"
VERSION = 1  # Increased when an old reader would misread the file.

HEADER = struct.Struct("<8s8Id64s")
"""magic, version, rank, world_size, attempt, pid, groups, slots, bytes of the text table, start time, host."""
UNSOUND_AT = 256  # 1 when a call could not be recorded: positions of this rank may be shifted against those of others.
SAMPLES_AT, SAMPLES = 512, 128
SAMPLE = struct.Struct("<IId")
"""Text of a place, how often the main thread was seen there outside any collective, when it was last (0 = empty)."""
GROUPS_AT = 4096
GROUP = struct.Struct("<IIIIqq")
"""Texts (name, ranks, desc), generation of the name, last sequence number issued, last one returned."""
RECORD = struct.Struct("<QddqIIIIIIiiIIIIqqqQBBBBIQ")
"""id, began, ended, step; texts (group index, site, region, op, user's call, dtype); root or peer, tag; texts (input
sizes, output sizes, ReduceOp, splits); seq, numel, compared amount, signature; state, p2p, async, 0, 0, id again."""
ENDED_AT = 16
STATE_AT = 112  # Offsets inside a record that change when the call returns.
TABLE_HEAD = struct.Struct("<I")
TEXT_HEAD = struct.Struct("<H")
STARTED, FINISHED, ISSUED, RAISED = 1, 2, 3, 4
STATES = {STARTED: "started", FINISHED: "finished", ISSUED: "issued", RAISED: "raised"}
MAX_GROUPS, MAX_SLOTS = 1024, 1 << 16  # Maximum values; a file that exceeds them is not from dtk.
NO_PEER = -1
ANY_PEER = -2


class RingGroup(Struct, frozen=True):
    """A process group as this rank used it."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    """Global ranks in order of group rank."""
    key: str
    """Key that is the same on all ranks of the group and unique to it."""
    generation: int
    """Number of earlier groups with this name in the process."""
    last_started: int
    """Sequence number of the last collective that it called; 0 if none."""
    last_finished: int
    """Sequence number of the last collective whose call returned, complete or not (async_op, a device)."""


class RingRecord(Struct, frozen=True):
    """One collective or point-to-point call, as the rank made it."""

    id: int
    """Position among all calls of this rank, from 1."""
    group: RingGroup
    seq: int
    """Position among the collectives of the group on this rank, from 1; p2p calls are counted by themselves."""
    is_p2p: bool
    op: str
    """`all_reduce`, `all_gather_into_tensor`, `send`, ..."""
    user_op: str
    """Object collective that the user called, if this call is part of one; otherwise empty."""
    dtype: str
    input_sizes: str
    """JSON list of shapes; empty if there was no room for them."""
    output_sizes: str
    numel: int
    """Number of elements of the inputs, or of the outputs if there are no inputs."""
    amount: int
    """Amount that must agree on all ranks: elements (reductions) or bytes over the group; -1 if it may differ."""
    root: int | None
    """Global rank of the root or of the peer of a p2p call; None if there is none, or for a recv from any rank."""
    reduce_op: str
    tag: int
    splits: str
    """JSON `[input splits, output splits]` of an all_to_all."""
    signature: int
    """Hash of what all ranks must agree on at this position; 0 for p2p."""
    file: str
    """The user's call site: innermost frame outside torch and dtk's own plumbing."""
    line: int
    function: str
    region: str
    step: int | None
    state: str
    """`started` (inside the call), `finished`, `issued` (asynchronous, handed over), `raised`."""
    time_s: float
    asynchronous: bool
    ended_s: float = 0.0
    """Time at which it returned; 0 if it has not."""


class RingSample(Struct, frozen=True):
    """A line of the user's on which a watching thread found the main thread, outside any recorded collective."""

    file: str
    line: int
    function: str
    times: int
    """Number of samples, taken ten times a second."""
    last_s: float


class RingDump(Struct, frozen=True):
    """The last calls of one rank, oldest first."""

    rank: int
    world_size: int
    attempt: int
    pid: int
    host: str
    groups: tuple[RingGroup, ...]
    records: tuple[RingRecord, ...]
    sound: bool
    """Whether every call is counted; if not, its positions may be shifted against those of other ranks."""
    torn: int
    """Number of records that were half written when the process ended."""
    samples: tuple[RingSample, ...] = ()
    """Samples in descending order of frequency."""


def file_bytes(groups: int, slots: int, table_bytes: int) -> int:
    """Return the size of a ring file in bytes."""
    return GROUPS_AT + groups * GROUP.size + slots * RECORD.size + table_bytes


def parse(data: bytes) -> RingDump:
    """Return all complete records of a ring; ValueError if it is not one, is newer, cut off, or contradicts itself."""
    if not data.startswith(MAGIC) or len(data) < GROUPS_AT:
        raise ValueError("not a ring of collectives, or cut off in its header")
    _, version, rank, world, attempt, pid, groups, slots, table_bytes, _, host = HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"ring of version {version}; this reads version {VERSION}")
    if groups > MAX_GROUPS or slots > MAX_SLOTS:
        raise ValueError(f"ring of {groups} groups and {slots} records; no rank writes so many")
    if not rank < world <= MOST_RANKS:
        raise ValueError(f"ring of rank {rank:,} of {world:,}; no job has such ranks")
    if len(data) != (size_bytes := file_bytes(groups, slots, table_bytes)):
        raise ValueError(f"ring of {len(data)} bytes where its header says {size_bytes}")
    texts = _texts(data[len(data) - table_bytes :])
    by_index = _groups(data, groups, texts)
    records, torn = _records(data, GROUPS_AT + groups * GROUP.size, slots, texts, by_index)
    taken = list[RingSample]()
    for text, times, last_s in SAMPLE.iter_unpack(data[SAMPLES_AT : SAMPLES_AT + SAMPLES * SAMPLE.size]):
        file, line, function = place_of(_text(texts, text))
        taken += [RingSample(file, line, function, times, last_s)] if times and file else []
    return RingDump(
        rank=rank,
        world_size=world,
        attempt=attempt,
        pid=pid,
        host=host.rstrip(b"\0").decode("utf-8", "replace"),
        groups=tuple(by_index.values()),
        records=records,
        sound=not data[UNSOUND_AT],
        torn=torn,
        samples=tuple(sorted(taken, key=lambda sample: (-sample.times, sample.file, sample.line))),
    )


def _texts(table: bytes) -> list[str]:
    """Return the interned texts; index 0 is the empty one."""
    texts, at = [""], TABLE_HEAD.size
    end = min(TABLE_HEAD.unpack_from(table)[0], len(table)) if len(table) >= at else 0
    while at + TEXT_HEAD.size <= end:
        begin = at + TEXT_HEAD.size
        at = begin + TEXT_HEAD.unpack_from(table, at)[0]
        if at <= end:
            texts.append(table[begin:at].decode("utf-8", "replace"))
    return texts


def place_of(text: str) -> tuple[str, int, str]:
    """Parse `file:line<tab>function`."""
    place, _, function = text.partition("\t")
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdecimal() and len(line) < 10 else 0, function


def _text(texts: list[str], index: int) -> str:
    return texts[index] if index < len(texts) else ""


def _groups(data: bytes, count: int, texts: list[str]) -> dict[int, RingGroup]:
    by_index = {}
    members: dict[int, tuple[int, ...]] = {}
    room = MAX_MEMBERS
    for index in range(count):
        name, ranks, desc, generation, started, finished = GROUP.unpack_from(data, GROUPS_AT + index * GROUP.size)
        if not ranks:
            continue
        if ranks not in members:
            members[ranks] = parse_ranks(_text(texts, ranks))
        room -= len(members[ranks])
        if room < 0:
            raise ValueError(f"groups of over {MAX_MEMBERS:,} members together; no rank has so many")
        title, ranks_of_group = _text(texts, name), members[ranks]
        key = group_key(title, ranks_of_group, generation)
        by_index[index] = RingGroup(title, _text(texts, desc), ranks_of_group, key, generation, started, finished)
    return by_index


def _records(
    data: bytes, at: int, slots: int, texts: list[str], groups: dict[int, RingGroup]
) -> tuple[tuple[RingRecord, ...], int]:
    """Return the complete records by id, and the number of torn ones."""
    whole: dict[int, RingRecord] = {}
    torn = 0
    for slot, fields in enumerate(RECORD.iter_unpack(data[at : at + slots * RECORD.size])):
        if fields[0] == 0 and fields[-1] == 0:
            continue
        is_whole = fields[0] == fields[-1] and (fields[0] - 1) % slots == slot
        record = _record(fields, texts, groups) if is_whole else None
        if record is None:
            torn += 1
        else:
            whole[record.id] = record
    return tuple(whole[number] for number in sorted(whole)), torn


def _record(fields: tuple[int, ...], texts: list[str], groups: dict[int, RingGroup]) -> RingRecord | None:
    """Return one record, or None if its group or state does not exist."""
    number, began, ended, step, group, site, region, op, user_op, dtype, root, tag = fields[:12]
    inputs, outputs, reduce_op, splits, seq, numel, amount, signature, state, p2p, asynchronous = fields[12:23]
    if group not in groups or state not in STATES:
        return None
    file, line, function = place_of(_text(texts, site))
    return RingRecord(
        id=number,
        group=groups[group],
        seq=seq,
        is_p2p=bool(p2p),
        op=_text(texts, op),
        user_op=_text(texts, user_op),
        dtype=_text(texts, dtype),
        input_sizes=_text(texts, inputs),
        output_sizes=_text(texts, outputs),
        numel=numel,
        amount=amount,
        root=root if root >= 0 else None,
        reduce_op=_text(texts, reduce_op),
        tag=tag,
        splits=_text(texts, splits),
        signature=signature,
        file=file,
        line=line,
        function=function,
        region=_text(texts, region),
        step=step if step >= 0 else None,
        state=STATES[state],
        time_s=float(began),
        asynchronous=bool(asynchronous),
        ended_s=float(ended),
    )
