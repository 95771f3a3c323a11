"""Decides from the reports of all ranks whether they called different collectives, or whether none progresses."""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch._C._distributed_c10d import Store

from dtk.record.desync import first_difference


@dataclass(slots=True)
class Peer:
    """What is known of another rank."""

    raw: bytes = b""
    report: dict[str, Any] = field(default_factory=dict)
    silent_s: float = 0.0
    histories: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)


class Judge:
    """One rank's view of all ranks."""

    def __init__(self, world_size: int) -> None:
        self.peers = [Peer() for _ in range(world_size)]
        self._keys = [f"rank/{rank}" for rank in range(world_size)]

    def read(
        self, store: Store, elapsed_s: float, silent_s: float, computes: Callable[[int, float], bool] = lambda *_: False
    ) -> None:
        """Read the ranks' reports.

        `silent_s` are the seconds for which rank 0 has been silent, on the first call of another rank; `computes`
        returns whether a rank that has been silent for this long is working.
        """
        heard = [bool(peer.raw) for peer in self.peers]
        present = [rank for rank, key in enumerate(self._keys) if all(heard) or store.check([key])]
        answers = dict(zip(present, store.multi_get([self._keys[rank] for rank in present]), strict=True))
        for rank, peer in enumerate(self.peers):
            raw = answers.get(rank, b"")
            before_s = silent_s if rank == 0 and not any(heard) else 0.0
            if raw == peer.raw:
                peer.silent_s = 0.0 if computes(rank, peer.silent_s) else peer.silent_s + (before_s or elapsed_s)
                continue
            peer.silent_s = before_s
            peer.raw = raw
            peer.report = json.loads(raw)
            peer.histories = {key: (count, unpack(text)) for key, (count, text) in peer.report["groups"].items()}

    def find(self, limit_s: float, first_limit_s: float) -> dict[str, Any] | None:
        """Return the reason to end the run, if there is one: a desync, or a stall of all ranks that have not left.

        They stall if none of them progresses for `limit_s`, or for `first_limit_s` until the first step is over.
        """
        staying = [peer for peer in self.peers if not peer.report.get("leaving")]
        if (desync := self._find_desync()) is not None or not staying:
            return desync
        stood_s = min(float(peer.report.get("idle_s", 0.0)) + peer.silent_s for peer in staying)
        stepping = any(peer.report.get("stepping") for peer in self.peers)
        return {"kind": "stall", "stood_s": stood_s} if stood_s >= (limit_s if stepping else first_limit_s) else None

    def staying(self) -> list[int]:
        """Return the ranks that are not leaving; some may have stalled before their first report."""
        return [rank for rank, peer in enumerate(self.peers) if not peer.report.get("leaving")]

    def left(self) -> dict[int, str]:
        """Return the ranks that no longer participate, and how they left: `failed` or `end`."""
        return {rank: str(how) for rank, peer in enumerate(self.peers) if (how := peer.report.get("leaving"))}

    def _find_desync(self) -> dict[str, Any] | None:
        """Return a group in which two ranks called different collectives at one position; None if there is none."""
        if not all(peer.report.get("sound", True) for peer in self.peers):
            return None
        groups: dict[str, dict[int, tuple[int, tuple[int, ...]]]] = {}
        for rank, peer in enumerate(self.peers):
            for key, history in peer.histories.items():
                groups.setdefault(key, {})[rank] = history
        for key in sorted(groups):
            if (position := first_difference(groups[key])) is not None:
                return {"kind": "desync", "group": key, "position": position}
        return None


def pack(history: list[int]) -> str:
    """Encode the hashes as text."""
    return struct.pack(f"<{len(history)}Q", *history).hex()


def unpack(text: str) -> tuple[int, ...]:
    """Decode the hashes."""
    data = bytes.fromhex(text)
    return struct.unpack(f"<{len(data) // 8}Q", data)
