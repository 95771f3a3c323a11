"""Histories of calls that no recorder kept, from what torch or gloo printed when it ended a rank: the fingerprints of
TORCH_DISTRIBUTED_DEBUG=DETAIL, the two message sizes of gloo's `op.preamble.length <= op.nbytes. X vs Y`, and timeouts.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from math import ceil, prod

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.histories.one_rank import SNAPSHOTS, digest
from diagnostics.analysis.histories.read import Reading
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.calls import ROOTED, Call, Described, Dump, GroupKey, Wire, describe, dtype, operation, settle
from diagnostics.evidence.flight_entries import DEFAULT_GROUP
from diagnostics.evidence.logs import nccl
from diagnostics.evidence.model import Evidence, LogFact
from diagnostics.evidence.trace.model import DTYPE_BYTES

RECORDER, LOGGED = "detail", "nccl_log"
_AGREED = 8  # Chosen: calls that agree before the first that differs; ranks that count otherwise agree in few.
_FINGERPRINT = re.compile(
    r"(?:SequenceNumber=(?P<seq>\d+),? ?)?OpType=(?P<op>\w+)(?:, ?TensorShape=\[(?P<shape>[\d, ]*)\])?"
    r"(?:, ?TensorDtypes=(?P<dtype>\w+))?"
)
_SEGMENT_BYTES = 1 << 20
"""gloo's `kMaxSegmentSize` (gloo/allreduce.h); the formulas of `message_bytes` were measured on 2 to 4 ranks."""


class PrintedCalls(Struct, frozen=True):
    """History of one rank in memory; implements `CallFile`."""

    rank: int
    file: str
    calls: tuple[Call, ...]
    members: tuple[int, ...]

    def load(self) -> list[Dump]:
        """Return the history as a dump."""
        key = self.calls[-1].key
        return [Dump(self.rank, self.file, key.recorder, [replace(c) for c in self.calls], members={key: self.members})]


def add_printed(evidence: Evidence, reading: Reading) -> None:
    """Add the printed calls to the survey, and make the calls pending in which gloo's timeout ended a rank."""
    for file in (*_logged(evidence, reading), *_fingerprints(evidence, reading), *_cut_short(evidence, reading)):
        reading.files.setdefault(file.rank, []).append(file)
        reading.survey.take(digest(file.rank, reading.files[file.rank], reading.attempt))
    for rank in reading.survey.ranks.keys() & {fact.rank for fact in evidence.facts if fact.kind == "gloo_timeout"}:
        _reopen(reading, rank)


def _reopen(reading: Reading, rank: int) -> None:
    """Make a rank's call pending that a peer never issued: gloo's recorder marks a call that timed out as retired."""
    for key, line in reading.survey.ranks[rank].lines.items():
        if key.recorder != "gloo" or line.pending is not None:
            continue
        lines = reading.survey.groups[key].lines
        reached = min(lines[peer].issued if peer in lines else line.issued - 1 for peer in reading.survey.members(key))
        calls = [call for call in reading.calls(rank, key) if call.seq > reached]
        if calls:
            # The root of a broadcast does not wait for its peers; whoever waits for the root is in the last call.
            call = next((call for call in calls if call.wire.op not in ROOTED), calls[-1])
            line.pending, line.done = replace(call, done=False), call.seq - 1


def message_bytes(wire: Wire, world: int) -> set[int]:
    """Return the possible sizes in bytes of gloo's messages for a call; empty if they are not known."""
    item = DTYPE_BYTES.get(wire.dtypes[0]) if len(wire.dtypes) == len(wire.amounts) == 1 else None
    if item is None or world < 2:
        return set()
    total = wire.amounts[0] * item
    if wire.op in {"all_reduce", "reduce"}:  # A ring of segments, at least two per rank.
        segments = ceil(max(ceil(total / _SEGMENT_BYTES), 2 * world) / world) * world
        return {ceil(ceil(total / segments) / item) * item}
    if wire.op == "all_gather":  # Each rank's part is sent round the ring in two halves.
        return {total // item // 2 * item, ceil(total / item / 2) * item, total // 2}
    return {total} if wire.op in {"broadcast", "gather", "scatter"} else set()


def of_messages(op: str, size_bytes: int) -> Described:
    """Return a call of which only the size of its messages in bytes is known."""
    return Described(Wire(op, (), ()), op, f"with messages of {size_bytes} bytes")


def _logged(evidence: Evidence, reading: Reading) -> list[PrintedCalls]:
    """Return calls that differ between ranks of the job's communicator in NCCL's log, and those just before; empty
    if they do not, as a log shows that a call was issued, not that it completed.

    A process shows a communicator by its address only. NCCL counts a group of calls as one, each rank its own sends,
    and replayed graphs without a line, so counts are compared only if the calls before agree, count by count.
    """
    logged = [fact for fact in evidence.facts if fact.kind == nccl.CALLS]
    size = max([evidence.world_size or 0, *(fact.fields["nranks"] for fact in logged)])
    logged = [fact for fact in logged if fact.fields["nranks"] == size]
    hosts = {fact.fields["process"].partition(":")[0] for fact in logged}
    # The devices of a node are the ranks if it has as many as the job.
    is_job = len(hosts) == 1 and max(fact.fields["device"] for fact in logged) == size - 1
    by_rank: dict[int, LogFact] = {}
    wires_at: defaultdict[int, set[tuple[Wire, ...]]] = defaultdict(set)
    for fact in logged:
        stated = (fact.fields["comm_rank"], fact.rank, fact.fields["device"] if is_job else UNNAMED)
        by_rank[next(rank for rank in stated if rank is not None)] = fact
        for place, calls in fact.fields["calls"].items():
            wires_at[place].add(tuple(call.wire for call in calls))
    end = min((place for place, wires in wires_at.items() if len(wires) > 1), default=None)
    if end is None or reading.survey.ranks or UNNAMED in by_rank or len(by_rank) < len(logged):
        return []
    begin, key = max(0, end - _AGREED), GroupKey(LOGGED, "0", DEFAULT_GROUP)
    is_comparable = begin == 0 or len(set().union(*(wires_at[place] for place in range(begin, end)))) > 1
    files = []
    for rank, fact in by_rank.items():
        calls = {place: own for place, own in fact.fields["calls"].items() if place >= begin}
        if max(calls, default=-1) < end:
            continue  # Its last lines are missing.
        own = [call for place in calls if place >= end for call in calls[place]]
        is_comparable &= calls.keys() >= {*range(begin, end + 1)} and len(own) == sum(place >= end for place in calls)
        is_comparable &= {call.wire.op for call in own} <= nccl.COUNTED
        history = tuple(Call(key, place + 1, calls[place][0], place < end, None) for place in sorted(calls))
        files.append(PrintedCalls(rank, fact.file, history, tuple(range(size))))
    return files if is_comparable else []


def _fingerprints(evidence: Evidence, reading: Reading) -> list[PrintedCalls]:
    """Return the call of each rank named in DETAIL's messages, unless all ranks state the same one: a false alarm.

    A rank knows its own call. It compares with its peers in the order of their ranks and prints the first one that
    differs (ProcessGroupWrapper.cpp), so all before that peer agree with it. Of a peer in a barrier, which has no
    tensor, torch prints another operation and the sequence number 0. Old ones print no numbers, and no peer's tensors.
    """
    facts = [fact for fact in evidence.facts if fact.kind == "collective_mismatch_text"]
    if any(SNAPSHOTS in record.recorders for record in reading.survey.ranks.values()):
        return []
    numbers = {fact.fields["rank_a"]: fact.fields["rank_a"] if fact.rank is None else fact.rank for fact in facts}
    stated: dict[int, tuple[str, LogFact, bool]] = {}
    for fact in facts if all(number == rank for number, rank in numbers.items()) else ():
        stated[fact.fields["rank_b"]] = (str(fact.fields["call_b"]), fact, False)
        stated |= dict.fromkeys(range(fact.fields["rank_b"]), (str(fact.fields["call_a"]), fact, True))
    for fact in facts:  # A rank's own statement has priority over statements by others.
        stated[numbers[fact.fields["rank_a"]]] = (str(fact.fields["call_a"]), fact, True)
    matches = {rank: match for rank, (text, _, _) in stated.items() if (match := _FINGERPRINT.match(text))}
    ranks = tuple(sorted(matches))
    whole = ranks == tuple(range(evidence.world_size or reading.survey.world() or len(evidence.launched)))
    key = GroupKey(RECORDER, "0" if whole else "", DEFAULT_GROUP if whole else "")
    position = max((1 + int(match["seq"]) for match in matches.values() if match["seq"]), default=0)
    ops = {match["op"] for match in matches.values()}
    is_plain = len({operation(op) for op in ops}) == len(ops)  # Otherwise variants of one operation.
    named = {rank: operation(m["op"]) if is_plain else m["op"].strip("_").lower() for rank, m in matches.items()}
    calls = {n: _fingerprint(evidence, key, position, matches[n], op, *stated[n][1:]) for n, op in named.items()}
    for rank, call in calls.items():
        if not call.stack:
            call.frames = _frames(evidence, rank)
            settle(call)
    if len({call.wire for call in calls.values()}) < 2:
        return []
    return [PrintedCalls(rank, stated[rank][1].file, (calls[rank],), ranks) for rank in ranks]


def _fingerprint(
    evidence: Evidence, key: GroupKey, position: int, match: re.Match[str], name: str, fact: LogFact, own: bool
) -> Call:
    """Return a call as the fact states it, at the line of the rank that printed it if that rank also made it."""
    op, sizes, amounts, dtypes = name, list[list[int]](), tuple[int, ...](), tuple[str, ...]()
    if match["shape"] is not None:
        shape = [int(size) for size in match["shape"].split(",") if size.strip()]
        amounts, dtypes, sizes = (prod(shape),), (dtype(match["dtype"] or ""),), [shape]
    elif not own and match["seq"]:
        op = "barrier"
    described = describe(op, Wire(op, amounts, dtypes), sizes, "".join(dtypes))
    frames = _frames(evidence, fact.rank if fact.rank is not None else fact.fields["rank_a"]) if own else None
    printed_s = fact.time_s
    with suppress(OSError, ValueError):
        printed_s = printed_s or (evidence.root / fact.file).stat().st_mtime  # An upper bound.
    return settle(Call(key, position, described, True, printed_s, frames=frames))


def _frames(evidence: Evidence, rank: int) -> list[dict[str, object]]:
    frames = next((error.frames for error in evidence.errors if error.rank == rank and error.frames), ())
    return [{"name": frame.function, "filename": frame.file, "line": frame.line} for frame in frames]


def _cut_short(evidence: Evidence, reading: Reading) -> Iterator[PrintedCalls]:
    """Yield complete histories of ranks ended by gloo over a long message: they were at their peers' last position."""
    survey = reading.survey
    facts = [fact for fact in evidence.facts if fact.kind == "gloo_mismatch" and "expected_bytes" in fact.fields]
    sizes = {fact.rank: fact for fact in facts if fact.rank is not None}
    for rank, fact in sizes.items():
        if rank in survey.ranks and SNAPSHOTS in survey.ranks[rank].recorders:
            continue
        for key, table in sorted(survey.groups.items()):
            issued = [line.issued for other, line in table.lines.items() if other not in sizes]
            members = survey.members(key)
            if key.recorder != "gloo" or not issued or (rank not in members and survey.membership_known(key)):
                continue
            if rank in table.lines and table.lines[rank].issued >= max(issued):
                continue
            sides = [ranks[0] for ranks in table.issued_at(max(issued)).values()]
            histories = sorted((reading.calls(other, key) for other in sides), key=len)
            if call := _cut_call(evidence, fact, rank, histories, len({*members, rank})):
                same = next((history for history in histories if history[-1].wire == call.wire), histories[-1])
                yield PrintedCalls(rank, fact.file, (*same[:-1], call), tuple(sorted({*members, rank})))
                break


def _cut_call(evidence: Evidence, fact: LogFact, rank: int, histories: list[list[Call]], world: int) -> Call | None:
    """Return the call that matches a rank's own message size; None if no peer's call has one of the two sizes."""
    expected, received = fact.fields["expected_bytes"], fact.fields["received_bytes"]
    last = [history[-1] for history in histories if history]
    if not any({expected, received} & message_bytes(call.wire, world) for call in last):
        return None
    cut = next((call for call in last if expected in message_bytes(call.wire, world)), None)
    if cut is not None:
        return replace(cut, done=False)
    peer = last[-1]
    same_op = [call for history in histories for call in history if call.wire.op == peer.wire.op]
    alike = [call for call in same_op if expected in message_bytes(call.wire, world)]
    described = of_messages(peer.wire.op, expected)
    call = replace(peer, described=described, stack=(), frames=_frames(evidence, rank), done=False)
    if len({(call.wire, call.stack) for call in alike}) == 1 and not call.frames:
        return replace(alike[-1], seq=peer.seq, created_s=peer.created_s, done=False)
    return settle(replace(call, described=alike[0].described if len({c.wire for c in alike}) == 1 else described))
