"""What a launcher's log says of ranks that ended: torchrun's list of failures, and fatal errors of the interpreter."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.endings import SIGNAL_TEXTS, signal_name
from diagnostics.evidence.logs import tracebacks
from diagnostics.evidence.logs.patterns import moments
from diagnostics.evidence.model import Frame, RankError

_MAX_ERRORS = 100_000
_TEXT = patterns_beside(__file__)  # Compiled patterns, documented in the table.
ROW = _TEXT["row"]
_RAISED = {"usage": "SystemExit", "storage": "OSError"}  # Patterns of what was raised where no traceback tells it.
LAUNCHER_TYPE, DRIVER_TYPE, TRAINS = _TEXT["launcher_type"], _TEXT["driver_type"], _TEXT["trains"]


def fatal_error(text: str, rank: int | None, file: str, line: int) -> RankError | None:
    """Return the error of a line of the interpreter (`Fatal Python error: Aborted`), a shell, argparse or a logger."""
    for name, type_ in _RAISED.items():
        if said := _TEXT[name].match(text):
            return RankError(rank, file, line, type_, said["what"])
    match = _TEXT["fatal"].match(text) or _TEXT["shell"].match(text)
    if match is None or not TRAINS.match(match["command"] or ""):
        return None
    return RankError(rank, file, line, "", text.strip(), signal=SIGNAL_TEXTS.get(match["what"].strip()))


def ended_child(message: str, file: str, line: int) -> RankError | None:
    """Return how a launcher's child process ended; few launchers' exceptions name its rank."""
    if (match := _TEXT["child"].search(message)) is None:
        return None
    signal, code = match["signal"], int(match["code"]) if match["code"] else None
    rank = next((int(number) for number in match.group("process", "number") if number), None)
    what = f"killed by {signal}" if signal else f"exit code {code}"
    return RankError(rank, file, line, "", what, signal=signal, exit_code=code)


def by_launcher(frames: Sequence[Frame], message: str = "", after: bool = False) -> bool:
    """Return whether a launcher raised the exception, perhaps `after` a rank's own. `record` also runs in ranks."""
    named = (after or not frames) and bool(_TEXT["child_program"].match(message))
    named = named or (after and bool(_TEXT["child_command"].match(message)))
    return named or any(_TEXT["launcher_file"].search(frame.file) for frame in frames)


def signal_in(text: str) -> str | None:
    """Return the signal named in a line of torchrun: `Signal 9 (SIGKILL) received`."""
    match = _TEXT["signal"].search(text)
    return match[2] if match else None


class _Row(Struct):
    """One rank in torchrun's list of failures."""

    line: int
    rank: int = -1
    local_rank: int = -1
    """Set in every row of `FailureTable.rows`."""
    host: str = ""
    code: int | None = None
    pid: int | None = None
    signal: str | None = None
    time_s: float | None = None
    trace: tracebacks.Assembler = field(default_factory=tracebacks.Assembler)


class FailureTable(Struct):
    """torchrun's summary, fed line by line: `rank : 3 (local_rank: 3)`, `exitcode : -9 (pid: 4000)`, ..."""

    rows: list[_Row] = field(default_factory=list)
    row: _Row | None = None

    def feed(self, text: str, number: int) -> bool:
        """Parse one line without its prefix; return whether the table continues."""
        match = ROW.match(text)
        if match is None:
            if self.row is not None and self.row.trace.active and text.startswith("  "):
                self.row.trace.feed(text[2:])  # the whole traceback is indented by two
                return True
            self.row = None
            return False
        key, value = match["key"], match["value"].strip()
        if key == "time" or self.row is None:
            self.row = _Row(number)
        row = self.row
        if key == "time":
            # Local time of the node, written without its zone; taken for UTC, so only differences mean something.
            row.time_s = next(iter(moments(value)), None)
        elif key == "host":
            row.host = value
        elif key == "rank" and (ranks := _TEXT["ranks"].match(value)):
            row.rank, row.local_rank = int(ranks[1]), int(ranks[2])
            if len(self.rows) < _MAX_ERRORS:
                self.rows.append(row)
        elif key == "exitcode" and (code := _TEXT["code"].match(value)):
            row.code, row.pid = int(code[1]), int(code[2])
            row.signal = signal_name(-row.code)
        elif key == "traceback":
            row.signal = signal_in(value) or row.signal
            row.trace.feed(value)
        return True

    def offset(self) -> int | None:
        """Return global minus local rank if all rows of this node agree; None without rows."""
        offsets = {row.rank - row.local_rank for row in self.rows}
        return offsets.pop() if len(offsets) == 1 else None

    def listed(self, log: str) -> dict[str, Any]:
        """Return the listed ranks, their process ids, the rank of each process, the host of each rank, and `beside`.

        These are the other ranks of this node, up to the last one; or all others, if `log` has each of them `finished`.
        """
        rank_of = {row.pid: row.rank for row in self.rows if row.pid is not None}
        host_of = {row.rank: row.host for row in self.rows}
        beside = {*range(min(row.rank - row.local_rank for row in self.rows), max(host_of) + 1)} - host_of.keys()
        said = [(int(match["rank"] or match["any"]), bool(match["rank"])) for match in _TEXT["done"].finditer(log)]
        peers = {rank for rank, _ in said}
        is_whole = len(peers) > 1 and peers == {*range(max(peers | host_of.keys()) + 1)} - host_of.keys()
        is_whole &= all(named for _, named in said) or said != sorted(said)  # Numbers of epochs ascend.
        rows = {"ranks": sorted(host_of), "pids": sorted(rank_of), "rank_of": rank_of, "host_of": host_of}
        return rows | ({"beside": sorted(peers), "finished": True} if is_whole else {"beside": sorted(beside)})

    def errors(self, file: str) -> list[RankError]:
        """Return one error per row, ordered by rank."""
        by_place: dict[tuple[int, int], RankError] = {}
        for row in self.rows:
            what = f"killed by {row.signal}" if row.signal else f"exit code {row.code}"
            raised = next(iter(row.trace.take(end=True)), tracebacks.Raised("", what, ()))
            end = raised.type, raised.message, raised.frames, row.signal, row.code, row.time_s, row.time_s, row.time_s
            by_place[row.rank, row.line] = RankError(row.rank, file, row.line, *end)
        return [by_place[place] for place in sorted(by_place)]
