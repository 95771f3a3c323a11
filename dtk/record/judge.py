"""Decides from the reports of all ranks whether they called different collectives, or whether none progresses."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from torch._C._distributed_c10d import Store

from dtk.record.verdict import History, first_difference


class Report(msgspec.Struct, frozen=True):
    """What a rank publishes at every tick of its watch, as JSON."""

    tick: int = 0
    idle_s: float = 0.0
    """Seconds without progress."""
    stepping: bool = False
    """Whether its first step is over."""
    leaving: str = ""
    """How it left, `failed` or `end`; empty while it participates."""
    sound: bool = True
    """Whether it recorded every call; if not, its hashes prove nothing."""
    groups: dict[str, History] = {}


@dataclass(slots=True)
class Peer:
    """What is known of another rank."""

    raw: bytes = b""
    report: Report = field(default_factory=Report)
    silent_s: float = 0.0


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
            peer.report = msgspec.json.decode(raw, type=Report)

    def find(self, limit_s: float, first_limit_s: float) -> dict[str, Any] | None:
        """Return the reason to end the run, if there is one: a desync, or a stall of all ranks that have not left.

        They stall if none of them progresses for `limit_s`, or for `first_limit_s` until the first step is over.
        """
        staying = [peer for peer in self.peers if not peer.report.leaving]
        if (desync := self._find_desync()) is not None or not staying:
            return desync
        stood_s = min(peer.report.idle_s + peer.silent_s for peer in staying)
        stepping = any(peer.report.stepping for peer in self.peers)
        return {"kind": "stall", "stood_s": stood_s} if stood_s >= (limit_s if stepping else first_limit_s) else None

    def staying(self) -> list[int]:
        """Return the ranks that are not leaving; some may have stalled before their first report."""
        return [rank for rank, peer in enumerate(self.peers) if not peer.report.leaving]

    def departures(self) -> dict[int, str]:
        """Return the ranks that no longer participate, and how they left: `failed` or `end`."""
        return {rank: peer.report.leaving for rank, peer in enumerate(self.peers) if peer.report.leaving}

    def _find_desync(self) -> dict[str, Any] | None:
        """Return a group in which two ranks called different collectives at one position; None if there is none."""
        if not all(peer.report.sound for peer in self.peers):
            return None
        groups: dict[str, dict[int, History]] = {}
        for rank, peer in enumerate(self.peers):
            for key, history in peer.report.groups.items():
                groups.setdefault(key, {})[rank] = history
        for key in sorted(groups):
            if (position := first_difference(groups[key])) is not None:
                return {"kind": "desync", "group": key, "position": position}
        return None
