"""Converts the entries of a flight-recorder dump to calls: all formats since torch 2.4.

Sources: FlightRecorder.hpp / FlightRecorderDetail.hpp of PyTorch (names of fields), measured dumps of gloo.
"""

import marshal
import re
from itertools import pairwise
from math import prod
from typing import Any

from diagnostics.evidence.calls import Call, Described, Dump, GroupKey, Wire, describe, dtype, operation
from diagnostics.evidence.model import MAX_MEMBERS, MOST_RANKS, integer

DEFAULT_GROUP = "default_pg"
_P2P = re.compile(r"(?:^|:)(send|recv)\s+(\d+|\?)\s*(?:->|<-)\s*(\d+|\?)", re.ASCII)
_NUMBERED = re.compile(r"\d{1,9}", re.ASCII)
_Config = dict[str, tuple[str, tuple[int, ...]]]
"""Group name -> (desc, ranks); gloo's single entry has the name `""`."""
_CACHE: dict[bytes, tuple[str, Described]] = {}
_MAX_CACHED = 50_000
_ELEMENTS = {"gather": 0, "scatter": 1, "broadcast": 0, "reduce": 0}
"""Rooted operations: the side whose sizes are set on every rank (0 for inputs, 1 for outputs)."""


def dump(value: dict[str, Any], rank: int | None, file: str) -> Dump:
    """Convert one recorder's dump to the common format.

    ValueError if some entries are invalid. The rank's history is then unknown: the omitted calls would look like calls
    that it never issued.
    """
    raw = value.get("entries")
    if raw is not None and not isinstance(raw, list):
        raise ValueError(f"its entries are a {type(raw).__name__} where a list belongs")
    entries = raw or []
    config = _config(value.get("pg_config"))
    groups: dict[int, GroupKey] = {}
    keys: dict[tuple[str, str, str], GroupKey] = {}
    members: dict[GroupKey, tuple[int, ...]] = {}
    decoded = [_call(entry, keys, groups, config, members) for entry in entries]
    calls = [call for call in decoded if call is not None]
    if len(calls) < len(entries):
        damaged = len(entries) - len(calls)
        raise ValueError(f"{damaged:,} of {len(entries):,} entries could not be parsed: not used")
    is_nccl = "nccl_version" in value or value.get("comm_lib_version") or value.get("nccl_comm_state")
    recorder = calls[0].key.recorder if calls else "nccl" if is_nccl else "gloo"
    for name, (desc, ranks) in config.items():
        if name and ranks:
            members.setdefault(GroupKey(recorder, name, desc), ranks)
    # Gloo overwrites its single entry with the group joined last, and writes no ranks for non-default groups. So a
    # full list means that no other group was joined after the default one; `[]` means that one was.
    nameless = config.get("", ("", ()))[1]
    default = next((ranks for key, ranks in members.items() if key.desc == DEFAULT_GROUP), ())
    return Dump(
        rank=rank,
        file=file,
        recorder=recorder,
        calls=calls,
        counters=_counters(value.get("pg_status"), groups, config, recorder),
        members=members,
        only_default_group=(len(config) == 1 and len(nameless) > 1) or None,
        outside=_outside(groups),
        world_size=max(default or nameless, default=-1) + 1 or None,
    )


def _config(raw: Any) -> _Config:
    """Parse the groups; raise ValueError if they have more members in total than the groups of any rank."""
    config: _Config = {}
    room = MAX_MEMBERS
    for key, group in raw.items() if isinstance(raw, dict) else ():
        if isinstance(group, dict):
            ranks = group.get("ranks")
            room -= ranks.count(",") if isinstance(ranks, str) else len(ranks) if isinstance(ranks, list | tuple) else 0
            if room < 0:
                raise ValueError(f"groups of over {MAX_MEMBERS:,} members together; no rank has so many")
            config[str(group.get("name", key))] = (str(group.get("desc", "")), _ranks(ranks))
    return config


def _ranks(raw: Any) -> tuple[int, ...]:
    """Parse `"[0, 1]"` or a list."""
    numbers = [int(part) for part in re.findall(r"\d{1,9}", raw)] if isinstance(raw, str) else raw
    numbers = numbers if isinstance(numbers, list | tuple) else ()
    return tuple(sorted({rank for rank in numbers if isinstance(rank, int) and 0 <= rank < MOST_RANKS}))


def _outside(groups: dict[int, GroupKey]) -> list[tuple[int, int]]:
    """Return pairs of group names between which a rank joined no other group.

    A rank numbers its own groups (`pg_id`), and all ranks jointly number the names, both in order of
    creation. Between two groups with consecutive ids, the rank therefore joined no group with a name between theirs.
    """
    named = [(pg_id, int(key.name)) for pg_id, key in sorted(groups.items()) if _NUMBERED.fullmatch(key.name)]
    if named and named[0][0] > 0:
        named.insert(0, (0, 0))  # The default group, without recorded calls.
    return [
        (name, after) for (pg_id, name), (later, after) in pairwise(named) if later == pg_id + 1 and after > name + 1
    ]


def _counters(raw: Any, groups: dict[int, GroupKey], config: _Config, recorder: str) -> dict[GroupKey, tuple[int, int]]:
    """Return group -> (enqueued, completed). `pg_status` is keyed by pg_id, which only entries map to a name.

    For groups without entries: ids and names are both assigned in order of creation, so with
    equal numbers of both they are paired, unless an entry contradicts.
    """
    status = {}
    for key, counts in raw.items() if isinstance(raw, dict) else ():
        pg_id = integer(key)
        if pg_id is not None and isinstance(counts, dict):
            enqueued = integer(counts.get("last_enqueued_collective"))
            completed = integer(counts.get("last_completed_collective"))
            if enqueued is not None and completed is not None:
                status[pg_id] = (enqueued, completed)
    names = sorted((int(name), name) for name in config if name.isdecimal() and len(name) < 10)
    if len(names) == len(config) == len(status):
        paired = {
            pg_id: GroupKey(recorder, name, config[name][0])
            for pg_id, (_, name) in zip(sorted(status), names, strict=True)
        }
        if all(paired.get(pg_id) == key for pg_id, key in groups.items()):
            groups = paired
    return {groups[pg_id]: counts for pg_id, counts in status.items() if pg_id in groups}


def _call(
    entry: Any,
    keys: dict[tuple[str, str, str], GroupKey],
    groups: dict[int, GroupKey],
    config: _Config,
    members: dict[GroupKey, tuple[int, ...]],
) -> Call | None:
    try:
        group = entry["process_group"]
        name, desc = (str(group[0]), str(group[1])) if isinstance(group, list | tuple) else (str(group), "")
        recorder, described = _describe(entry)
        seq = integer(entry["collective_seq_id"], 0)
        created_ns = integer(entry.get("time_created_ns"))
        timeout_ms = integer(entry.get("timeout_ms"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None
    if seq is None:
        return None
    key = keys.get((recorder, name, desc))
    if key is None:
        key = keys[recorder, name, desc] = GroupKey(recorder, name, desc)
        if name in config and config[name][1]:
            members[key] = config[name][1]
    pg_id = entry.get("pg_id")
    if type(pg_id) is int:
        groups[pg_id] = key
    call = Call(
        key=key, seq=seq, described=described, frames=entry.get("frames"),
        begun=entry.get("state") == "started" or entry.get("time_discovered_started_ns") is not None,
        done=entry.get("retired") is True or entry.get("state") == "completed",
        created_s=created_ns / 1e9 if created_ns else None, timeout_s=timeout_ms / 1e3 if timeout_ms else None,
    )  # fmt: skip
    if entry.get("is_p2p") is True:
        _point_to_point(call, entry, members.get(key, ()))
    return call


def _point_to_point(call: Call, entry: dict[str, Any], members: tuple[int, ...]) -> None:
    """Parse `nccl:recv 0<-1`, which has ranks of the group; the second one is the peer."""
    call.seq = integer(entry.get("p2p_seq_id")) or 0
    match = _P2P.search(str(entry.get("profiling_name")))
    call.p2p = match[1] if match else call.wire.op.split(" ")[0]
    if match and match[3] != "?":
        peer = int(match[3])
        if members:
            call.peer = members[peer] if peer < len(members) else None
        else:
            call.peer = peer if call.key.desc == DEFAULT_GROUP else None


def _describe(entry: dict[str, Any]) -> tuple[str, Described]:
    raw = (entry["profiling_name"], *map(entry.get, ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")))
    packed = marshal.dumps(raw, 2)
    description = _CACHE.get(packed)
    if description is None:
        if len(_CACHE) >= _MAX_CACHED:
            _CACHE.clear()
        description = _CACHE[packed] = _description(*raw)
    return description


def _description(name: str, ins: Any, in_types: Any, outs: Any, out_types: Any) -> tuple[str, Described]:
    recorder = name.partition(":")[0] if ":" in name else ""
    op = operation(name)
    match = _P2P.search(name)
    if match:
        op = match[1]
    inputs, outputs = _sizes(ins), _sizes(outs)
    types = tuple(dtype(str(kind)) for kind in (in_types or out_types or ()))
    if op in {"all_to_all", "coalesced", "barrier"}:
        wire = Wire(op, (), types[:1] if op == "all_to_all" else ())
    else:
        side = (inputs, outputs)[_ELEMENTS.get(op, 0)]
        if op in _ELEMENTS and not side:
            side = (outputs, inputs)[_ELEMENTS[op]]
        wire = Wire(op, tuple(prod(size) for size in side), types)
        if op in {"gather", "scatter"}:
            wire = Wire(op, wire.amounts, tuple(dict.fromkeys(types)))
    sizes = () if op == "barrier" else inputs or outputs
    return recorder, describe(op, wire, map(list, sizes), "/".join(dict.fromkeys(types)))


def _sizes(raw: Any) -> tuple[tuple[int, ...], ...]:
    sizes = tuple(tuple(size) for size in raw) if isinstance(raw, list | tuple) else ()
    if any(type(extent) is not int or abs(extent) > 1 << 48 for size in sizes for extent in size):
        raise ValueError("sizes that are not integers")
    return sizes
