"""The watch inside a rank of any script, under `dtk watch`. It must not change the script's behaviour."""

import faulthandler
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.util import Finalize
from types import TracebackType

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d as c10d

from diagnostics.contract.artifacts import RunPaths, write_json
from dtk.config.schema import RecordConfig, WatchConfig
from dtk.parallel.loopback import serve_store
from dtk.record import flight, wrappers
from dtk.record.collectives import CollectiveLog
from dtk.record.guard import bounded, flush_reports, guarded, run_all
from dtk.record.heartbeat import HeartbeatFile
from dtk.record.run_folder import failure_record
from dtk.record.watch import Watch
from dtk.record.watch_environment import watched_run

_ADDRESS = "dtk/watch/address"
FAILED_S = 3.0  # Chosen: time limit of a failing rank's dumps.

_times = 0  # Number of attachments of this process: each has its own prefix in the store.


class Attachment:
    """What is installed in this rank."""

    def __init__(self, paths: RunPaths, rank: int, world_size: int, attempt: int, stall_timeout_s: float) -> None:
        self.paths, self.stall_timeout_s = paths, stall_timeout_s
        self.rank, self.world_size, self.attempt = rank, world_size, attempt
        self._calls: CollectiveLog | None = None
        self._watch: Watch | None = None
        self._store: Store | None = None
        self._heartbeat = HeartbeatFile(paths.heartbeat(rank), attempt)
        self._black_box = flight.BlackBox(paths, rank, attempt, RecordConfig().black_box_every_s)
        self._at_exit: Finalize | None = None
        self._crash_stacks = False
        self._failed = False
        self._hook: Callable[[type[BaseException], BaseException, TracebackType | None], object] = sys.excepthook

    def start(self, prefix: str) -> None:
        """Install everything. The process must have its default group."""
        self._at_exit = Finalize(None, self.detach, exitpriority=0)
        self._hook, sys.excepthook = sys.excepthook, self._raised
        run_all({"heartbeat": self._heartbeat.start, "black box": self._black_box.start})
        with guarded("stacks"):
            if not faulthandler.is_enabled():
                faulthandler.enable()
                self._crash_stacks = True
        with guarded("ring"):
            self._calls = wrappers.record(self.paths.ring(self.rank), self.rank, self.world_size, self.attempt)
        if self._calls is not None and self.world_size > 1:
            with guarded("watch"):
                self._store, hosted = watch_store(c10d._get_default_store(), prefix, self.rank)
                limit_s = self.stall_timeout_s
                cuda = torch.cuda.is_available() and "nccl" in str(dist.get_backend_config())
                config = WatchConfig(stall_timeout_s=limit_s, first_step_timeout_s=limit_s)
                own = config, self._calls, self.paths, "cuda" if cuda else "cpu"
                dump = partial(run_all, flight.last_dumps(self.paths, self.rank, self._black_box))
                self._watch = Watch(*own, flight.group_status, dump, hosted=hosted)
                self._watch.start(self._store)

    def detach(self) -> None:
        """Uninstall everything, in order: before the group is destroyed, or when the process exits."""
        if self._at_exit is None:
            return
        self._at_exit.cancel()
        self._at_exit = None
        parts: dict[str, Callable[[], object]] = {}
        if self._watch is not None:
            parts["watch"] = partial(self._watch.close, failed=self._failed)
        parts["collectives"] = wrappers.remove
        if self._calls is not None:
            parts["ring"] = self._calls.ring.close
        parts["black box"] = self._black_box.close
        parts["heartbeat"] = partial(self._heartbeat.close, None if self._failed else "end")
        run_all(parts)
        if sys.excepthook == self._raised:
            sys.excepthook = self._hook
        if self._crash_stacks:
            faulthandler.disable()
        flush_reports()

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Handle an exception that ends the script: call the previous hook, then write the failure record."""
        self._hook(kind, error, trace)
        if self._failed or not isinstance(error, Exception):
            return
        self._failed = True
        with guarded("error.json"):
            record = failure_record(error, self.rank, self.attempt)
            write_json(self.paths.error(self.attempt, self.rank), record)
        if self._watch is not None:
            with guarded("watch"):
                self._watch.close(failed=True)
        bounded("failure dumps", partial(flight.dump, self.paths.flight(self.rank)), FAILED_S)


def attach() -> Attachment:
    """Watch this rank, whose default group was just created."""
    global _times
    _times += 1
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    paths, stall_timeout_s = watched_run()
    attachment = Attachment(paths, dist.get_rank(), dist.get_world_size(), attempt, stall_timeout_s)
    attachment.start(f"{attempt}/{_times}")
    return attachment


def watch_store(store: Store, prefix: str, rank: int) -> tuple[Store, bool]:
    """Return a store for the watch, and whether it is in rank 0's process.

    torchrun's store is in its agent. A FileStore would grow indefinitely, so rank 0 opens another store.
    """
    innermost = store
    while isinstance(innermost, PrefixStore):
        innermost = innermost.underlying_store
    if isinstance(innermost, TCPStore):
        return PrefixStore(prefix, store), os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    key = f"{_ADDRESS}/{prefix}"
    if rank == 0:
        several_nodes = os.environ.get("LOCAL_WORLD_SIZE") not in (None, os.environ.get("WORLD_SIZE"))
        several_nodes |= os.environ.get("SLURM_NNODES", "1") != "1"
        own = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if several_nodes else serve_store()
        store.set(key, f"{socket.gethostname()}:{own.port}")
        return own, True
    host, _, port = store.get(key).decode().rpartition(":")
    return TCPStore("127.0.0.1" if host == socket.gethostname() else host, int(port), wait_for_workers=False), True
