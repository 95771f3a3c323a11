"""Flight-recorder dumps: pickle and JSON of torch 2.4 and later, NCCL and gloo, and dtk's black boxes.

Recognised by content. Holds one file at a time and gives its calls in the common form of `calls`;
what the entries mean is settled in `entries`. Knows no verdict.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.evidence import flight_entries, safe_pickle
from diagnostics.evidence.calls import Dump
from diagnostics.evidence.limits import Limits, whole

_KEYS = (b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version", b"profiling_name")


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is a dump of a flight recorder, or a black box of dtk."""
    if head.lstrip()[:1] == b"{":
        return any(b'"%b"' % key in head for key in (*_KEYS, b"recorders"))
    return head[:1] == b"\x80" and any(key in head for key in _KEYS)


@dataclass(frozen=True, slots=True)
class FlightFile:
    """A handle; the file is read by `load`."""

    path: Path
    file: str
    """Relative to the evidence's root."""
    rank: int | None
    limits: Limits

    def load(self) -> list[Dump]:
        """What each recorder in the file holds; one for torch's dumps, one for each ring of a black box.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged, too large, or no dump.
        """
        data = whole(self.path, self.limits)
        try:
            return self._dumps(self._value(data))
        except RecursionError as problem:
            raise ValueError(f"nested over {self.limits.depth} levels") from problem
        except (TypeError, OverflowError, MemoryError, UnicodeError) as problem:
            raise ValueError(f"damaged dump: {type(problem).__name__}") from problem

    def _value(self, data: bytes) -> dict[str, Any]:
        if not data.strip():
            raise ValueError("the file is empty")
        if data.lstrip()[:1] == b"{":
            try:
                value = msgspec.json.decode(data)
            except msgspec.DecodeError as problem:
                raise ValueError(f"damaged JSON: {problem}") from problem
        else:
            value = safe_pickle.loads(data, self.limits)
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} where a dump is a dict")
        return value

    def _dumps(self, value: dict[str, Any]) -> list[Dump]:
        recorders = value.get("recorders")
        if not isinstance(recorders, dict):
            if not value.keys() & {"version", "entries", "pg_config", "pg_status"}:
                raise ValueError("no dump of a flight recorder")
            return [flight_entries.dump(value, self.rank, self.file)]
        dumps = []
        for name in sorted(recorders):
            if isinstance(recorders[name], dict):
                dump = flight_entries.dump(recorders[name], self.rank, self.file)
                dump.black_box = True
                dump.time_s = flight_entries.number(value.get("time_s"))
                dump.step = flight_entries.integer(value.get("step"))
                dump.attempt = flight_entries.integer(value.get("attempt"))
                dump.region = str(value.get("region") or "")
                if dump.rank is None:
                    dump.rank = flight_entries.integer(value.get("rank"))
                dumps.append(dump)
        return dumps
