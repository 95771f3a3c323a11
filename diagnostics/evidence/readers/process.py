"""A rank's process as `dtk attach` saw it from outside: state, CPU times of its main thread, progress of its loops."""

import re
from pathlib import Path
from typing import NamedTuple

from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.model import LogFact, RankError
from diagnostics.evidence.reader import Contents, Reader

KIND = "process"
_WORLD_SIZE = re.compile(rb'"world_size": (\d{1,7})\b')
_MOST = 64
"""Maximum number of observations, and of frames with variables, that are kept."""


class Moment(NamedTuple):
    """The state of a process according to /proc; times are those of its main thread."""

    time_s: float
    state: str = ""
    """As in proc_pid_stat(5): `S`, `R`, `D`, `T` (stopped), `t` (under a debugger), `Z` (ended); empty = gone."""
    cpu_s: float = 0.0
    switches: int = 0
    """Number of voluntary context switches: each wait that ended counts."""
    wchan: str = ""
    """Kernel function in which it sleeps."""


def read(path: Path, file: str, limits: Limits) -> Contents:
    """Read one file; raises OSError or ValueError, like `Reader.open`.

    Its fact has `looks` (pairs of moments, before and after stacks were taken), `call` (function of torch.distributed
    that runs, whether its group is the default one, the variable that holds it, its peer), `counters` ((file, function)
    of a frame of the script -> integers in its variables), `groups` (number of process groups made), `connections`
    (rank of this host -> number of connections to it), `pid`, and `lock_holder` (process whose file lock it waits for).
    """
    value = small_json(path, limits)
    try:
        rank, nranks, code = int(value["rank"]), int(value["world_size"]), value.get("exit_code")
        looks = tuple((_moment(*before), _moment(*after)) for before, after in value["looks"][:_MOST])
        last, groups = _moment(*value["last"]), value.get("groups")
        moments = (*(moment for pair in looks for moment in pair), last)
        numbers = [number for moment in moments for number in (moment.time_s, moment.cpu_s, moment.switches)]
        call = {str(name): str(text)[:64] for name, text in value.get("call", {}).items()}
        connections = {int(peer): int(count) for peer, count in value.get("connections", {}).items()}
        counters = {
            (str(frame["file"]), str(frame["function"])): {str(k): int(v) for k, v in frame["numbers"].items()}
            for frame in value.get("counters", ())[:_MOST]
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError("not a record of a rank's process") from error
    if not 0 <= rank < nranks or not all(type(number) in (int, float) and 0 <= number < 1e12 for number in numbers):
        raise ValueError("not a record of a rank's process")
    fields = {"looks": looks, "last": last, "call": call, "counters": counters, "groups": groups}
    fields["connections"] = connections
    fields |= {name: value[name] for name in ("pid", "lock_holder") if type(value.get(name)) is int}
    facts = [LogFact(KIND, rank, file, fields=fields, time_s=last.time_s)]
    errors = [RankError(rank, file, 0, "", "", exit_code=code, time_s=last.time_s)]
    return Contents(file, facts=facts, errors=errors if type(code) is int and -256 < code < 256 else [])


def _moment(time_s: float, state: str, cpu_s: float, switches: int, wchan: str) -> Moment:
    return Moment(time_s, str(state)[:1], cpu_s, switches, str(wchan)[:64])


READER = Reader(
    kind=KIND,
    recognise=lambda head: head.startswith(b"{") and head[1:].lstrip().startswith(b'"dtk_process":'),
    open=lambda source: read(source.path, source.file, source.limits),
    facts=(KIND,),
    world_size=lambda head: int(match[1]) if (match := _WORLD_SIZE.search(head)) else None,
)
