"""Turns the records of a simulated job into in-memory evidence for `dtk diagnose`. Decides nothing."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from diagnostics.contract.artifacts import Status
from diagnostics.contract.mesh import Mesh
from diagnostics.evidence.calls import SIMULATED, Call, Described, Dump, GroupKey, describe, is_library
from diagnostics.evidence.job.assign_ranks import merge_errors
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, RankError, RunEvidence, Stacks, Thread
from diagnostics.evidence.readers.log import read_text
from diagnostics.evidence.readers.ring import RECORDER
from diagnostics.evidence.ring.format import RingDump, RingGroup, RingRecord, place_of
from dtk.preflight.calls import Entry, Record
from dtk.preflight.match import RankProgress

TICK_S = 1e-3  # Assumed time between two calls of a rank, as nothing is executed.
LAST_CALLS = 2048  # Number of each rank's last calls that are included: as many as a run keeps (`dtk.record.ring`).
LAST_CALLS_OF_MANY = 128  # Chosen: enough to show the loop around a divergence.
MANY_RANKS = 64  # With more ranks than this, LAST_CALLS_OF_MANY of each are enough: the analysis is linear in both.
NOWHERE = Path("preflight")  # Placeholder folder: nothing is read from it or written.


def evidence(
    records: Mapping[int, Record],
    progress: Mapping[int, RankProgress],
    config: Mapping[str, object],
    mesh: Mesh | None = None,
) -> Evidence:
    """Return the stuck state as evidence; for a script, `config` is empty and `mesh` is None."""
    last = LAST_CALLS if len(records) <= MANY_RANKS else LAST_CALLS_OF_MANY
    failed = any(record.end.kind in ("killed", "raised") or record.end.code for record in records.values())
    run = RunEvidence(NOWHERE, Status("failed" if failed else "hung", exit_code=1), dict(config), {}, {}, {}, {}, {})
    run.manifest["mesh"] = {**asdict(mesh), "order": [*mesh.order]} if mesh is not None else {}
    gathered = Evidence(NOWHERE, Limits(), run=run, world_size=len(records))
    for rank, record in sorted(records.items()):
        history = History(record, progress[rank], last)
        if record.end.kind != "killed" or progress[rank].issued:
            gathered.files.setdefault(SIMULATED, []).append(history)
        if record.errors:
            log = read_text(record.errors, history.file, rank)
            gathered.facts += log.facts
            gathered.errors += log.errors
            gathered.stacks += log.stacks
        if progress[rank].pending is None:
            _add_end(gathered, run, record, history.file)
    gathered.errors = merge_errors(gathered.errors)
    return gathered


def _add_end(gathered: Evidence, run: RunEvidence, record: Record, file: str) -> None:
    """Add to the evidence how a rank ended.

    Only of a rank that reached its end: what one does after a call that never completes rests on made-up values, as
    the exception of a receive that got nothing, and does not happen in the job.
    """
    rank, end = record.rank, record.end
    step = end.step if end.step >= 0 else None
    if end.error is not None:
        gathered.errors.append(replace(end.error, rank=rank, file=file, step=step))
    elif end.kind == "killed":
        what = f"killed by {end.signal}" if end.signal else "disappeared without a message"
        gathered.errors.append(RankError(rank, file, 0, "", what, signal=end.signal or None, step=step))
    elif end.kind == "stalled":
        gathered.stacks.append(Stacks(rank, file, (Thread("MainThread", end.stack, main=True),)))
    elif end.kind == "exited" and end.code:
        gathered.errors.append(RankError(rank, file, 0, "", f"exit code {end.code}", exit_code=end.code, step=step))
    elif end.kind == "exited":
        run.events[rank] = [{"kind": "event", "name": "end", "rank": rank, "attempt": 0, "exit_code": 0}]


@dataclass(frozen=True, slots=True)
class History:
    """The calls of one simulated rank, with the interface of `CallFile`."""

    record: Record
    progress: RankProgress
    last: int
    """Number of calls to include."""

    @property
    def rank(self) -> int:
        """See `CallFile`."""
        return self.record.rank

    @property
    def file(self) -> str:
        """Name in the report."""
        return f"simulated rank {self.record.rank}"

    def load(self) -> list[Dump]:
        """See `CallFile`."""
        record, progress = self.record, self.progress
        keys = [GroupKey(RECORDER, group.name, group.desc) for group in record.groups]
        incomplete = set(progress.incomplete)
        issued, sent, completed = ([0] * len(keys) for _ in range(3))
        calls = []
        for number, entry in enumerate(record.issued()[: progress.issued]):
            counts = sent if entry.p2p else issued
            seq = counts[entry.group] = counts[entry.group] + 1
            done = number not in incomplete
            if done and not entry.p2p:
                completed[entry.group] = seq
            if number >= progress.issued - self.last:
                call = _call(entry, record.groups[entry.group].ranks, keys[entry.group], seq)
                call.done, call.created_s = done, 1.0 + number * TICK_S
                # A transfer that no rank waits for yet blocks nothing.
                call.completion_known = done or not entry.p2p or number == progress.pending
                calls.append(call)
        return [
            Dump(
                rank=record.rank,
                file=self.file,
                recorder=RECORDER,
                calls=calls,
                counters={key: (issued[n], completed[n]) for n, key in enumerate(keys)},
                members={key: record.groups[n].ranks for n, key in enumerate(keys)},
                step=calls[-1].step if calls else None,
                region=calls[-1].region if calls else "",
            )
        ]

    def read(self) -> RingDump:
        """Return the calls with the bytes that a rank sends to and expects of each other rank, as `RingFile.read`."""
        record, progress = self.record, self.progress
        named = [(group.name, group.desc, group.ranks, f"{group.name} {group.ranks}") for group in record.groups]
        groups = tuple(RingGroup(*each, 0, 0, 0) for each in named)
        seqs, incomplete = [0] * len(groups), {*progress.incomplete}
        calls = []
        for number, entry in enumerate(record.issued()[: progress.issued]):
            group, shapes, at = groups[entry.group], json.loads(entry.sizes or "[]"), frame_of(entry.site)
            seqs[entry.group] += not entry.p2p
            if number < progress.issued - self.last:
                continue
            peer = entry.peer if entry.p2p else entry.wire.root
            state = "started" if number == progress.pending else "issued" if number in incomplete else "finished"
            row: list[Any] = [number + 1, group, seqs[entry.group], bool(entry.p2p), entry.op, entry.user_op]
            row += [entry.dtype, entry.sizes, "[]", sum(map(prod, shapes)), -1]
            row += [None if peer is None else group.ranks[peer], "", entry.tag]
            row += [_rows(entry, len(group.ranks), shapes), 0, at.file, at.line, at.function, entry.region]
            row += [entry.step, state, number * TICK_S, True]
            calls.append(RingRecord(*row))
        return RingDump(self.rank, 0, 0, 0, "", groups, tuple(calls), True, 0)


def _rows(entry: Entry, ranks: int, shapes: list[list[int]]) -> str:
    """Return the splits of an all_to_all in the ring's format; empty for any other call."""
    if not entry.op.startswith("all_to_all") or len(shapes) != 1:
        return ""
    sides = [side if len(side) == ranks else side * ranks for side in (entry.sent, entry.taken)]
    row_bytes = max(1, sum(sides[0]) // max(1, shapes[0][0]))
    return json.dumps([[size // row_bytes for size in side] for side in sides])


def whole_history(record: Record) -> list[Call]:
    """Return all calls that a rank would ever issue, by number."""
    issued = len(record.issued())
    return History(record, RankProgress(issued, None), issued).load()[0].calls


def _call(entry: Entry, ranks: tuple[int, ...], key: GroupKey, seq: int) -> Call:
    """Return the call in the form in which a rank of the group records it."""
    root = None if entry.wire.root is None else ranks[entry.wire.root]
    peer = None if entry.peer is None else ranks[entry.peer]
    stack, in_backward = stack_of(entry.stack or entry.site)
    return Call(
        key=key,
        seq=seq,
        described=_described(entry, root, peer),
        done=False,
        created_s=None,
        stack=stack,
        user_op=entry.user_op,
        p2p=entry.p2p,
        peer=peer,
        tag=entry.tag if entry.p2p else None,
        step=entry.step if entry.step >= 0 else None,
        region=entry.region or ("backward" if in_backward else ""),
    )


@lru_cache(maxsize=1 << 16)
def _described(entry: Entry, root: int | None, peer: int | None) -> Described:
    sizes = json.loads(entry.sizes) if entry.sizes else []
    return describe(entry.op, entry.wire._replace(root=root), sizes, entry.dtype, entry.p2p, peer, entry.tag)


@lru_cache(maxsize=1 << 14)
def stack_of(text: str) -> tuple[tuple[Frame, ...], bool]:
    """Return the user's frames of an entry's stack, innermost first, and whether torch's backward made the call."""
    frames = [frame_of(site) for site in text.splitlines()]
    own = tuple(frame for frame in frames if not is_library(frame.file))
    return own, any(is_library(frame.file) and frame.function.rpartition(".")[2] == "backward" for frame in frames)


def frame_of(site: str) -> Frame:
    """Return the frame of `file:line<tab>function`."""
    return Frame(*place_of(site))
