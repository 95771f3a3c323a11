"""How a rank ended: the only classification of exceptions, signals, exit codes and launcher messages."""

import re
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import asdict, replace

from diagnostics.contract.artifacts import ENDED_BY_WATCH
from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.contract.findings import EvidenceItem
from diagnostics.contract.formatting import UNNAMED, Phrase
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.model import Frame, LogFact, RankError, shortened

Kind = Literal[
    "raised", "oom", "killed", "exited", "unreduced", "aborted", "mismatch", "lost_peer", "timed_out", "stopped",
    "failed", "unknown",
]  # fmt: skip
"""How a rank ended.

- `raised`: its own exception; `oom`: memory ran out, on the host or on the device
- `killed`: by a signal that no launcher sends, or its process disappeared; `exited`: an exit code without an exception
- `unreduced`: DDP found gradients missing; `aborted`: SIGABRT, which C++ code raises in its own process
- `mismatch`: the library detected that a peer issued a different collective
- `lost_peer`: the connection to a peer broke; `timed_out`: a peer did not arrive in time
- `stopped`: by the launcher or the user; `failed`: exit code 1 without details, so its own error or a peer's
"""
Detail = Literal[
    "", "cgroup", "host_memory", "nccl_memory", "data_loader_worker", "data_loader_sigkill", "split_sizes",
    "model_differs", "host_allocation", "driver_memory", "invalid_usage",
]  # fmt: skip
"""Details of the kind.

- `cgroup`: the kernel killed it because of its job's memory limit; `host_memory`: because memory ran out on the host
- `host_allocation`: an allocation on the host failed
- `nccl_memory`: NCCL could not allocate on the device; `driver_memory`: CUDA outside torch's allocator could not
- `data_loader_worker`: a worker process of its data loader died; `data_loader_sigkill`: by SIGKILL
- `split_sizes`: gloo rejected this rank's split sizes of all_to_all; `invalid_usage`: NCCL a call, without a reason
- `model_differs`: DDP found different parameters on another rank
"""

BY_ITSELF: tuple[Kind, ...] = ("raised", "oom", "killed", "exited")
"""Kinds of a rank that failed or exited by itself, in the order of the report."""
_VICTIM: frozenset[Kind] = frozenset({"mismatch", "lost_peer", "timed_out", "stopped"})


class Ending(RankError, frozen=True, kw_only=True):  # noqa: N818 - no exception
    """How one rank ended: an error record or a line of a log, classified."""

    rank: int
    """`UNNAMED` if no file assigns it to a rank."""
    message: str = ""
    """First line of the exception's message; `text` may contain only its first sentence."""
    kind: Kind
    text: str = ""
    """Text from an exception or a log, `ValueError: bad batch`; empty if only a signal or an exit code is known."""
    source: Literal["error", "log"] = "log"
    """Kind of the evidence in `file`."""
    quoted: str = ""
    """The quoted line of the file; empty if there is none."""
    detail: Detail = ""
    connection_closed: bool = False
    """Whether the peer closed a connection, so some process ended before this one."""
    raised_by_gloo: bool = False
    side_error: str = ""
    """An earlier exception of a side thread, from the log."""
    unlisted: bool = False
    """Whether the exit code is inferred: the launcher listed all ranks that failed or that it had to stop."""

    @property
    def record(self) -> EvidenceItem:
        """Return its location in the evidence."""
        return EvidenceItem(self.source, self.file, self.quoted, self.line or None)

    @property
    def summary(self) -> str | Phrase:
        """Return how the rank ended: the quoted text or the signal, else a phrase that the report formats."""
        row = self.detail if self.detail in _WORDS else "vanished" if self.exit_code is None else "exit_code"
        how = self.text or (self.detail not in _WORDS and self.signal) or _phrase(row, code=self.exit_code)
        return _phrase("side_error", how=how, error=self.side_error) if self.side_error else how

    @property
    def evidence(self) -> EvidenceItem:
        """Return the record, with a description of the ending if there is nothing to quote."""
        how = _phrase("unlisted" if self.unlisted else "in_order") if self.unlisted or self.in_order else self.summary
        how = how if self.rank == UNNAMED else _phrase("of_rank", rank=self.rank, how=how)
        return self.record if self.quoted else replace(self.record, detail=how)

    @property
    def by_itself(self) -> bool:
        """Return whether the rank failed or exited by itself rather than because of a peer."""
        return self.kind in BY_ITSELF

    @property
    def of_device(self) -> bool:
        """Return whether the rank's own device reported it."""
        return bool(_TEXT["of_device"].match(self.message or self.text))

    @property
    def of_program(self) -> bool:
        """Return whether the program, its device or its memory ended the rank, and not a fault of communication."""
        of_library = self.type in _C10D_ERRORS or self.detail == "invalid_usage" or is_fault(self.signal)
        return (self.by_itself or self.kind == "unreduced") and not (of_library or self.only_exit_code)

    @property
    def victim(self) -> bool:
        """Return whether another rank or the launcher caused the ending."""
        return self.kind in _VICTIM

    @property
    def exited_early(self) -> bool:
        """Return whether the rank exited early: neither stopped by the launcher nor after an error about a peer."""
        return self.by_itself or self.kind in {"aborted", "unreduced"}

    @property
    def in_order(self) -> bool:
        """Return whether it exited with code 0."""
        return self.kind == "exited" and self.exit_code == 0

    @property
    def only_exit_code(self) -> bool:
        """Return whether only a non-zero exit code is known about its failure."""
        return not self.type and self.exit_code is not None and self.exit_code > 0


def first_is_unknown(endings: Iterable[Ending]) -> bool:
    """Return whether all known endings are those of victims.

    Then the rank that failed first is unknown, so no rank and no kind of failure can be ruled out. False
    without endings, as then it is not even known that a rank failed.
    """
    kinds = [ending.kind for ending in endings]
    return bool(kinds) and all(kind in _VICTIM or kind in {"failed", "unknown"} for kind in kinds)


# Exceptions

_TABLE = table_beside(__file__)
ORDER: dict[Kind, int] = _TABLE["order"]
"""Priority of endings as evidence of who failed first: lowest first."""
COMMUNICATION_ERRORS = frozenset(_TABLE["communication_errors"])
"""Exception classes of torch's collectives, process groups and stores."""
_C10D_ERRORS = COMMUNICATION_ERRORS - {"RuntimeError"}
"""Exception classes that only torch's communication raises."""
_SOCKET_ERRORS = frozenset(_TABLE["socket_errors"])
"""Python's socket exceptions: a lost peer only if torch.distributed raised them."""

_TEXT = patterns_beside(__file__, "texts")
"""Compiled patterns, documented in the table."""
_WORDS: dict[str, str] = _TABLE["words"]
VANISHED = _WORDS["vanished"]


def _phrase(row: str, **figures: object) -> Phrase:
    return Phrase(row, _WORDS[row], figures)


MISMATCH_TEXT = _TEXT["mismatch_text"]
"""Messages of gloo, and of torch with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
_THEN = " (then "
"""Separates errors during cleanup, which are not informative, in an assembled traceback."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out, on the host or on the device."""
    return kind_of_exception(type(error).__name__, str(error)) == "oom"


def kind_of_exception(type_: str, message: str, frames: tuple[Frame, ...] = ()) -> Kind:
    """Classify one exception; its class may lack the module, its message may be combined from a chain.

    An exception is the rank's own unless torch's communication raised it about a peer. This is certain for texts that
    only gloo, NCCL and the stores write: they are C++, so their errors also come out of `work.wait()` or of backward
    in the user's line. Any other text about a connection counts only if the innermost frame is in
    torch.distributed, or if the class exists nowhere else, as HTTP clients also lose connections.
    """
    name = _TEXT["repeated_class"].sub(r"\1", type_.rpartition(".")[2])
    text, no_size = message.partition(_THEN)[0], bool(_TEXT["no_size"].search(message))
    if (no_size or _TEXT["no_object"].search(name)) and in_object_call(frames):
        return "mismatch"
    if not no_size and (_TEXT["out_of_memory_type"].search(name) or _TEXT["out_of_memory"].search(text)):
        return "oom"
    if _TEXT["unreduced"].search(text):
        return "unreduced"
    named_text = f"{name}: {text}"
    if _TEXT["stopped"].search(named_text):
        return "stopped"
    if _TEXT["own_arguments"].search(text) or _TEXT["own_use"].search(text):
        return "raised"
    library = name in COMMUNICATION_ERRORS or name == "HorovodInternalError"
    if library and MISMATCH_TEXT.search(text):
        return "mismatch"
    from_c = library or name in _SOCKET_ERRORS
    inside = bool(frames) and bool(_TEXT["communication_file"].search(frames[0].file.replace("\\", "/")))
    if frames and frames[0].raises and name not in _C10D_ERRORS and not is_library(frames[0].file):
        return "raised"  # The user's code found this itself; what C++ reports comes out of its call of torch.
    certain = (from_c and _TEXT["communication_text"].search(text)) or (
        name == "RuntimeError" and _TEXT["socket_text"].fullmatch(text.strip())
    )
    may_be = name in _C10D_ERRORS or (inside and from_c)
    if not certain and not (may_be and _TEXT["speaks_of_a_peer"].search(named_text)):
        return "raised"
    return "timed_out" if _TEXT["timed_out"].search(named_text) and not _TEXT["closed"].search(text) else "lost_peer"


def in_object_call(frames: tuple[Frame, ...]) -> bool:
    """Return whether an exception was raised where torch makes an object of what its peers sent."""
    return bool(frames) and bool(_TEXT["object_call"].search(f"{frames[0].file} {frames[0].function}"))


def is_victim(kind: str) -> bool:
    """Return whether a rank with this ending (a `Kind`) was stopped by another rank or the launcher."""
    return kind in _VICTIM


def is_interrupt(error: RankError) -> bool:
    """Return whether an exception of a stopped rank tells of SIGINT, rather than of SIGTERM."""
    return bool(_TEXT["interrupted"].search(f"{error.type}: {error.message}"))


def tells_of_others(endings: Mapping[int, Ending]) -> set[int]:
    """Return the ranks whose exception only tells that another of these ranks failed."""
    effects = {rank: match for rank, end in endings.items() if (match := _TEXT["of_another"].search(end.message))}
    own = endings.keys() - effects.keys()
    return {rank for rank, match in effects.items() if ({int(match["rank"])} if match["rank"] else own) & own}


def allocator_of(type_: str, message: str) -> Literal["", "cuda", "cpu"]:
    """Return the torch allocator that ran out of memory, on the device or the host; empty for any other error."""
    if _TEXT["no_size"].search(message):
        return ""
    raised = type_.rpartition(".")[2] == "OutOfMemoryError" and not _TEXT["ray_memory"].search(message)
    if raised or _TEXT["device_memory"].search(message):
        return "cuda"
    return "cpu" if _TEXT["host_allocator"].search(message) else ""


def is_uncaught(text: str) -> bool:
    """Return whether a line is the interpreter's output for an uncaught exception, which begins with its class."""
    return bool(_TEXT["exception_line"].match(text))


def _detail(type_: str, message: str, kind: Kind) -> Detail:
    if kind == "oom":
        if _TEXT["ray_memory"].search(message):
            return "host_memory"
        host = type_ in ("MemoryError", "_ArrayMemoryError") or _TEXT["host_allocation"].search(message)
        driver: Detail = "driver_memory" if _TEXT["driver_memory"].search(message) else ""
        return "nccl_memory" if _TEXT["nccl_memory"].search(message) else "host_allocation" if host else driver
    if worker := _TEXT["data_loader_worker"].search(message):
        return "data_loader_sigkill" if worker["sigkill"] else "data_loader_worker"
    if match := _TEXT["rejected"].search(message):
        return "split_sizes" if match["splits"] else "invalid_usage"
    return "model_differs" if _TEXT["model_differs"].search(message) else ""


def parameters(endings: Iterable[Ending]) -> dict[int, int]:
    """Return how many parameters the model of each rank has, as far as DDP's errors say so."""
    counts: dict[int, int] = {}
    for stated in filter(None, (_TEXT["parameters"].search(end.text) for end in endings)):
        rank, count, peer, count_of_peer = map(int, stated.groups())
        counts |= {rank: count, peer: count_of_peer}
    return counts


# Signals and exit codes

_LAUNCHER_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
_FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP"})


def signal_name(number: int) -> str | None:
    """Return the name of a signal: 9 -> `SIGKILL`; None if there is none. Not of 137: programs may exit with it."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return None


def repeated(code: int) -> int:
    """Return -9 for 247: a launcher that ends with the return code of its child, -9, so ends with 247."""
    return code - 256 if signal_name(256 - code) in ("SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV", "SIGBUS") else code


def is_fault(signal: str | None) -> bool:
    """Return whether the signal is a fault in the process's native code, which is never sent by another process."""
    return signal in _FAULTS


def kind_of_signal(signal: str) -> Kind:
    """Classify the signal that killed a process."""
    return "aborted" if signal == "SIGABRT" else "stopped" if signal in _LAUNCHER_SIGNALS else "killed"


def kind_of_exit_code(code: int) -> Kind:
    """Classify an exit code without a known exception; Python exits with 1 after any of them."""
    if code < 0:
        return kind_of_signal(signal_name(-code) or "")
    return "failed" if code == 1 else "exited"


# Records of evidence

_LONG = 120
"""Length in characters from which only a message's first sentence is shown."""
_LINE = 200
"""Maximum characters of a quoted log line."""
_KEPT = 1000
"""Maximum stored characters of a message's first line."""
_OOM_FACTS = frozenset({"cuda_oom", "cpu_oom"})


def ends_a_rank(error: RankError) -> bool:
    """Return whether the record describes how a rank ended, rather than a note of the watch or the launcher."""
    if error.exit_code == ENDED_BY_WATCH and not error.type:
        return False
    return bool(error.type or error.signal or error.exit_code is not None or error.vanished)


def of_error(error: RankError, rank: int) -> Ending:
    """Convert an error record that satisfies `ends_a_rank` to an ending of the assumed rank, or of `UNNAMED`."""
    signal, code, line = error.signal, error.exit_code, ""
    if error.type:
        kind = kind_of_exception(error.type, error.message, error.frames)
        line = _telling_line(error) if kind == "oom" or _TEXT["no_size"].search(error.message) else _first_line(error)
    elif signal is not None or (code or 0) < 0:
        signal = signal or signal_name(-(code or 0)) or f"signal {-(code or 0)}"
        kind = kind_of_signal(signal)
    else:
        kind = "killed" if code is None else kind_of_exit_code(code)
    first = shortened(_opening(error.message), _KEPT)
    return Ending(
        **asdict(error) | {"rank": rank, "message": first, "signal": signal},
        kind=kind,
        text=line,
        source="error",
        detail=_detail(error.type, error.message, kind),
        connection_closed=kind == "lost_peer" and bool(_TEXT["closed"].search(error.message)),
        raised_by_gloo=bool(_TEXT["gloo"].search(error.message)),
    )


def of_fact(fact: LogFact, rank: int) -> Ending | None:
    """Convert a log line to an ending: out of memory, a kernel that failed, or a gradient that was ready twice."""
    if fact.kind == "ddp_marked_twice":
        return of_line(fact, rank, "raised", text=shortened(fact.text, _LINE), type="RuntimeError")
    error = str(fact.fields.get("error")) if fact.kind == "cuda_error" else ""
    out_of_memory = bool(_TEXT["out_of_memory"].search(error))
    if error and not out_of_memory and "ends" in fact.fields and not _TEXT["shutting_down"].search(error):
        what = f"{'memory access' if _TEXT['access'].match(error) else 'CUDA error:'} {shortened(error)}"
        return of_line(fact, rank, "raised", text=what, type="CUDA error")
    if not out_of_memory and fact.kind not in _OOM_FACTS:
        return None
    detail: Detail = "host_allocation" if fact.kind == "cpu_oom" else "nccl_memory" if "nccl" in fact.fields else ""
    return of_line(fact, rank, "oom", text=shortened(fact.text, _LINE), time_s=fact.time_s, detail=detail)


def of_line(fact: LogFact, rank: int, kind: Kind, **fields: Any) -> Ending:
    """Convert a log line to an ending, with further fields in `fields`."""
    more = {"type": "", "quoted": shortened(fact.text, _LINE)} | fields
    return Ending(rank=rank, file=fact.file, line=fact.line, kind=kind, **more)


SIGNAL_TEXTS: dict[str, str] = _TABLE["signals"]
"""The C library's signal descriptions, which srun and Python print."""


def of_srun(fact: LogFact) -> list[Ending]:
    """Return the endings in one line of srun (fact `srun_task`). Each task is a rank."""
    text = str(fact.fields.get("why", ""))
    ranks = fact.fields.get("ranks", ())
    if match := _TEXT["srun_code"].match(text):
        code = int(match[1])
        return [of_line(fact, rank, kind_of_exit_code(code), exit_code=code) for rank in ranks]
    if _TEXT["srun_memory"].match(text):
        return [of_line(fact, rank, "oom", signal="SIGKILL", detail="cgroup") for rank in ranks]
    signal = next((signal for name, signal in SIGNAL_TEXTS.items() if text.startswith(name)), None)
    return [of_line(fact, rank, kind_of_signal(signal), signal=signal) for rank in ranks if signal]


def by_kernel(ending: Ending, fact: LogFact) -> Ending:
    """Return the ending of a rank that the kernel killed for memory, according to a line of the kernel or Slurm."""
    whole_host = not any(fact.fields.get(name) for name in ("cgroup", "kills")) and fact.fields.get("constraint") in (
        None, "CONSTRAINT_NONE",
    )  # fmt: skip
    whole_host &= fact.kind == "kernel_oom" and not _TEXT["of_pod"].search(fact.text)
    detail: Detail = "host_memory" if whole_host else "cgroup"
    where = {"source": "log", "file": fact.file, "line": fact.line, "quoted": shortened(fact.text, _LINE)}
    return replace(ending, kind="oom", text="", signal="SIGKILL", detail=detail, **where)


def _telling_line(error: RankError) -> str:
    """Return `_first_line` of the line about memory: NCCL prints it last, c10 after the failed check."""
    if request := _TEXT["request"].match(error.message):
        return f"{error.type}: {request[0]}"
    if _TEXT["out_of_memory_type"].search(error.type):
        return _first_line(error)
    line = next((line for line in error.message.splitlines() if _TEXT["out_of_memory"].search(line)), error.message)
    if len(line) > _LONG:
        line = next((part for part in re.split(r"(?<=\.) ", line) if _TEXT["out_of_memory"].search(part)), line)
    return _first_line(replace(error, message=line))


def _opening(message: str) -> str:
    """Return the first line, and the second if the first only introduces it: `Failed to import x because of:`.

    NCCL's own reason follows `Last error:`, Ascend's a number; the lines before say where torch's source noticed it.
    """
    *_, reason = _TEXT["library_reason"].split(message, 1)[1:] or [""]
    reason = reason.strip()
    first, _, rest = (reason or message.strip()).partition("\n")
    announced = rest.partition("\n")[0].strip() if first.rstrip().endswith(":") else ""
    return f"{first.rstrip()} {announced}".rstrip()


def _first_line(error: RankError) -> str:
    """Return class and first line of the message; only the first sentence of a long line."""
    line = " ".join(_opening(error.message).split())
    if check := _TEXT["own_arguments"].match(line):
        line = f"gloo/{check[1]}: {check[2]} does not hold"
    if len(line) > _LONG:
        line = line.partition(". ")[0]
    if len(line) > _LINE:  # What is wrong with a file stands behind its path.
        line = _TEXT["folders"].sub("...", line)
    line = line if line.endswith("..") else line.removesuffix(".")
    return f"{error.type}: {shortened(line, _LINE)}" if line else error.type


# The last line of a traceback, if nothing else is known of the exception


def last_exception_line(lines: Sequence[str]) -> str:
    """Return the last line that ends a traceback, such as `KeyError: 'x'`; empty where there is none."""
    return next((line.strip() for line in reversed(lines) if _TEXT["traceback_end"].match(line)), "")


def exception_of_line(text: str) -> tuple[str, str]:
    """Return class and message of `KeyError: 'x'`; the class is empty if the line has none."""
    match = _TEXT["exception"].match(text.strip())
    return (match[1].rpartition(".")[2], match[2] or "") if match else ("", text.strip())
