"""Flight-recorder dumps: pickle and JSON of torch 2.4 and later, NCCL and gloo, and dtk's black boxes."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from diagnostics.evidence import flight_entries, safe_pickle
from diagnostics.evidence.calls import Dump
from diagnostics.evidence.dump_agreement import contradiction
from diagnostics.evidence.limits import head
from diagnostics.evidence.model import integer, seconds
from diagnostics.evidence.reader import Handle, Reader, opens
from diagnostics.evidence.readers import ras, trace

_COPIED_S = 30.0
"""Maximum age of a torch dump relative to its last call. An older file may be a copy, so its time is ignored."""
_KEYS = (b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version", b"profiling_name")


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a flight-recorder dump or a black box of dtk."""
    if head.lstrip()[:1] == b"{":  # Newer traces repeat the pg_config of the recorder, NCCL's RAS its version.
        others = trace.recognise(head) or ras.recognise(head)
        return any(b'"%b"' % key in head for key in (*_KEYS, b"recorders")) and not others
    return head[:1] == b"\x80" and any(key in head for key in _KEYS)


class FlightFile(Handle, frozen=True):
    """A flight-recorder dump or a black box."""

    kind = "flight"

    def load(self) -> list[Dump]:
        """Return a dump for each recorder in the file: one for torch's dumps, one for each ring of a black box."""
        return safe_pickle.load_plain(self.path, self.limits, self._dumps, "dump")

    def _dumps(self, value: dict[str, Any]) -> list[Dump]:
        safe_pickle.refuse_sharing(value)
        recorders = value.get("recorders")
        if not isinstance(recorders, dict):
            if not value.keys() & {"version", "entries", "pg_config", "pg_status"}:
                raise ValueError("not a flight-recorder dump")
            dump = flight_entries.dump(value, self.rank, self.file)
            written_s = self.path.stat().st_mtime
            dump.time_s = written_s if 0 < written_s - dump.last_s() < _COPIED_S else None
            return [dump]
        rank = integer(value.get("rank")) if self.rank is None else self.rank
        dumps = [
            flight_entries.dump(ring, rank, self.file) for _, ring in sorted(recorders.items()) if type(ring) is dict
        ]
        for dump in dumps:
            dump.black_box, dump.time_s = True, seconds(value.get("time_s"))
            dump.step, dump.attempt = integer(value.get("step")), integer(value.get("attempt"))
            dump.region = str(value.get("region") or "")
        return dumps


_BACKEND = re.compile(rb"\b(nccl|gloo|xccl|hccl|ucc|mpi):[a-z_]")
_BLACK_BOX = b'"recorders"'
_DEFAULT_RANKS = re.compile(rb"default_pg[^\[\]]{1,64}\[(0(?:, ?\d{1,7})*)\]")
_HEAD_BYTES = 4096


def _groups(files: Sequence[FlightFile], in_run: bool) -> list[list[FlightFile]]:
    """Sort a rank's dumps by backend. A dump with stacks (pickle) is preferred to JSON, both to a black box."""
    if len(files) == 1:
        return [list(files)]
    forms: defaultdict[int, list[tuple[bytes, FlightFile]]] = defaultdict(list)
    for file in files:
        start = head(file.path)[:_HEAD_BYTES]
        backend = match[1] if (match := _BACKEND.search(start)) else b""
        is_json = start.lstrip()[:1] == b"{"
        forms[2 if is_json and _BLACK_BOX in start else 1 if is_json else 0].append((backend, file))
    best = forms[min(forms)]
    if in_run:  # torch's own watchdog dumps beside dtk's: the same ring, written twice
        best = [(backend, file) for backend, file in best if "watchdog" not in file.path.name] or best
    return [[file for other, file in best if other == backend] for backend in sorted({backend for backend, _ in best})]


READER = Reader(
    kind=FlightFile.kind,
    title="flight-recorder dumps",
    recognise=recognise,
    open=opens(FlightFile),
    suffixes=(".pickle", ".pkl", ".json"),
    per_rank="dump",
    of_rank=True,
    has_calls=True,
    world_size=lambda head: match[1].count(b",") + 1 if (match := _DEFAULT_RANKS.search(head)) else None,
    groups=_groups,
    contradiction=contradiction,
)
