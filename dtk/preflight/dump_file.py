"""One rank's collectives as a flight-recorder dump: what the ring has no room for is the whole stack of each call."""

import json
import pickle
from typing import Any

from dtk.preflight.calls import Entry, Record
from dtk.preflight.match import Standing
from dtk.preflight.ring_file import TICK_S

VERSION = "2.10"
"""Of torch's format, as torch 2.13 writes it."""


def data(record: Record, standing: Standing, slots: int) -> bytes:
    """The dump's file.

    Args:
        record: of the rank.
        standing: where it stands.
        slots: calls that are kept, the last ones.
    """
    entries = _entries(record, standing)[-slots:]
    groups = {one.name: {"name": one.name, "desc": one.desc, "ranks": str(list(one.ranks))} for one in record.groups}
    return pickle.dumps({"version": VERSION, "pg_config": groups, "pg_status": {}, "entries": entries})


def _entries(record: Record, standing: Standing) -> list[dict[str, Any]]:
    incomplete = set(standing.incomplete)
    positions = [0] * len(record.groups)
    found = []
    number = -1
    for event in record.program.steps():
        if event < 0:
            continue
        number += 1
        if number >= standing.issued:
            break
        entry = record.program.entries[event]
        if entry.p2p:
            continue
        positions[entry.group] += 1
        group = record.groups[entry.group]
        names = (group.name, group.desc)
        state = "started" if number == standing.pending else "scheduled" if number in incomplete else "completed"
        found.append(_entry(entry, number, positions[entry.group], names, state))
    return found


def _entry(entry: Entry, number: int, seq: int, names: tuple[str, str], state: str) -> dict[str, Any]:
    inputs, outputs = (json.loads(text) if text else [] for text in (entry.inputs, entry.outputs))
    return {
        "record_id": number,
        "pg_id": entry.group,
        "process_group": names,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"gloo:{entry.op}",
        "time_created_ns": int((1.0 + number * TICK_S) * 1e9),
        "input_sizes": inputs,
        "input_dtypes": [entry.dtype] * len(inputs),
        "output_sizes": outputs,
        "output_dtypes": [entry.dtype] * len(outputs),
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
        "frames": [_frame(site) for site in entry.stack.splitlines()],
    }


def _frame(site: str) -> dict[str, Any]:
    place, _, function = site.partition("\t")
    file, _, line = place.rpartition(":")
    return {"name": function.rpartition(".")[2], "filename": file, "line": int(line or 0)}
