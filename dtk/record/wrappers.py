"""Wrappers around torch.distributed's Python functions that record every collective and p2p call. Calls from C++ (DDP's
reducer) bypass them; the flight recorder has those.
"""

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as _  # noqa: F401  Keeps the original functions for torch.compile.
from torch.distributed import distributed_c10d as c10d

from diagnostics.evidence.ring.format import FINISHED, ISSUED, RAISED
from dtk.record import functional
from dtk.record.collectives import CollectiveLog
from dtk.record.guard import guarded, report
from dtk.record.ring import Ring
from dtk.record.signatures import KINDS, OBJECTS, Kind


class _Inside(threading.local):
    """State of this thread: whether it is inside a recorded call or an object collective."""

    recording = False
    user_op = ""


_inside = _Inside()
_log: CollectiveLog | None = None
_work_wait = dist.Work.wait
_originals: dict[str, tuple[Any, Any]] = {}  # Name -> torch's function and its wrapper.


def record(path: Path, rank: int, world_size: int, attempt: int) -> CollectiveLog:
    """Record every call of this rank in a new ring at `path`; OSError if the folder is full or read-only."""
    ring = Ring(path, rank, world_size, attempt)
    ring.start()
    log = CollectiveLog(ring)
    install(log)
    return log


def install(log: CollectiveLog) -> None:
    """Record into `log` from now on; call it before process groups are created."""
    global _log
    if not _originals:
        wraps = {name: functools.partial(_recorded, kind) for name, kind in KINDS.items()}
        wraps |= {name: functools.partial(_noted, name) for name in OBJECTS}
        for name, wrap in wraps.items():
            if (original := getattr(c10d, name, None)) is not None:
                _originals[name] = (original, wrap(original))
        _originals["destroy_process_group"] = (c10d.destroy_process_group, _forgetting(c10d.destroy_process_group))
        _originals["_check_op"] = (c10d._check_op, _check_op)
        _originals["P2POp.__init__"] = (c10d.P2POp.__init__, _init_p2p_op)
        c10d.P2POp.__init__ = _init_p2p_op  # type: ignore[method-assign]
        dist.Work.wait = _wait  # type: ignore[assignment,method-assign]
        _exchange(dict(_originals.values()))
    with guarded("functional collectives"):  # Operators of torch that are internal.
        functional.install(log)
    _log = log


def remove() -> None:
    """Restore torch's functions. Wrappers that were imported elsewhere then call through unrecorded."""
    global _log
    _log = None
    functional.remove()
    if _originals:
        c10d.P2POp.__init__ = _originals["P2POp.__init__"][0]  # type: ignore[method-assign]
        dist.Work.wait = _work_wait  # type: ignore[method-assign]
    _exchange({wrapper: original for original, wrapper in _originals.values()})
    _originals.clear()


def _exchange(pairs: dict[Any, Any]) -> None:
    """Replace functions in every module that imported them, as by `from torch.distributed import all_reduce`.

    Of torch's own modules only the two that define and export them are changed: others, such as torch.compile's table
    of collectives, compare the original functions by identity.
    """
    replacements = {id(old): new for old, new in pairs.items()}
    for name, module in list(sys.modules.items()):
        of_torch = name.partition(".")[0] == "torch" and module is not dist and module is not c10d
        if of_torch or name == __name__:  # This module's own `_check_op` is a wrapper, for the next `install` too.
            continue
        for key, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in replacements:
                setattr(module, key, replacements[id(value)])


def _check_op(op: Any) -> None:
    """Check as torch does; also accept isend and irecv that were imported before `install`."""
    if op not in [each for name in ("isend", "irecv") for each in _originals[name]]:
        _originals["_check_op"][0](op)


def _init_p2p_op(self: Any, op: Any, *args: Any, **kwargs: Any) -> None:
    """Initialize as torch does, which compares `op` by identity: it must be the module's current function."""
    current_op = next((pair[1] for pair in (_originals["isend"], _originals["irecv"]) if op is pair[0]), op)
    _originals["P2POp.__init__"][0](self, current_op, *args, **kwargs)


def _wait(work: Any, *args: Any, **kwargs: Any) -> Any:
    """Wait as torch does, and record it: a rank that hangs in an asynchronous call hangs here."""
    if torch.compiler.is_compiling() or (log := _log) is None or _inside.recording:
        return _work_wait(work, *args, **kwargs)
    return log.awaited(log.works.pop(work, None), _work_wait, work, *args, **kwargs)


def _recorded(kind: Kind, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or (log := _log) is None or _inside.recording:
            return original(*args, **kwargs)
        token = None
        try:
            call = kind.extract(*args, **kwargs)
            token = log.begin(kind, call, _inside.user_op, sys._getframe(1))
        except Exception as problem:
            log.lose()
            report("collectives: a call could not be recorded", problem)
        if token is None:
            return original(*args, **kwargs)
        _inside.recording = True
        state = RAISED
        try:
            result = original(*args, **kwargs)
            state = ISSUED if call.asynchronous else FINISHED
            # On an accelerator the wait only makes one stream wait for another: the host is not blocked.
            if call.asynchronous and isinstance(result, dist.Work) and call.on_host():
                log.works[result] = token
        finally:
            _inside.recording = False
            log.end(token, state, kind.p2p)
        return result

    return recorded


def _noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an object collective, so that its calls are recorded as parts of it."""

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _log is None:
            return original(*args, **kwargs)
        outer, _inside.user_op = _inside.user_op, _inside.user_op or name
        try:
            return original(*args, **kwargs)
        finally:
            _inside.user_op = outer

    return noted


def _forgetting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def destroy(group: Any = None) -> Any:
        name = None if group in (None, dist.GroupMember.WORLD) else getattr(group, "group_name", "")
        try:
            return original(group)
        finally:
            if _log is not None:
                _log.forget(name)

    return destroy
