"""Starts the ranks of this machine with torch's elastic agent, inside the parent's process."""

import dataclasses
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from diagnostics.contract.artifacts import RunPaths
from dtk.launch.processes import importable
from dtk.parallel import loopback

SHUTDOWN_TIMEOUT_S = 5  # Timeout of the agent for the peers of a failed rank after SIGTERM.
RENDEZVOUS = "dtk-loopback"  # Name of `LoopbackRendezvous` in torch's registry.


class LoopbackRendezvous(StaticTCPRendezvous):
    """A store in the parent that listens on loopback; the agent and its ranks use it across all restarts.

    torch's `c10d` rendezvous keeps its state as a pickle in a store that listens on every interface, so anyone who
    reaches the port can execute code in the launcher. A single node needs no agreement: it is always rank 0 of 1.
    """

    def __init__(self, port: int, run_id: str) -> None:
        self.store = loopback.serve_store(port)
        super().__init__(loopback.ADDRESS, self.store.port, rank=0, world_size=1, run_id=run_id, timeout=0)

    def get_backend(self) -> str:
        """Return the name of this rendezvous backend."""
        return RENDEZVOUS

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store and this node's rank, without waiting for other nodes."""
        address = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(PrefixStore(self.run_id, self.store), self.rank, self.world_size, address)


class RankLogs(LogsSpecs):
    """Sends each rank's output to `logs/attempt_<n>/rank_<r>/`; nothing reaches the terminal directly."""

    def __init__(self, paths: RunPaths, first_attempt: int) -> None:
        super().__init__(str(paths.root / "logs"), Std.ALL)
        self.paths = paths
        self.first_attempt = first_attempt

    @property
    def root_log_dir(self) -> str:
        """Logs folder of the run."""
        return str(self.paths.root / "logs")

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the folders of one attempt and return its file names."""
        destination = LogsDest()
        for local_rank, env in envs.items():
            attempt = self.first_attempt + int(env["TORCHELASTIC_RESTART_COUNT"])
            folder = self.paths.logs(attempt, int(env["RANK"]))
            folder.mkdir(parents=True, exist_ok=True)
            destination.stdouts[local_rank] = str(folder / "stdout.log")
            destination.stderrs[local_rank] = str(folder / "stderr.log")
            destination.tee_stdouts[local_rank] = ""
            destination.tee_stderrs[local_rank] = ""
            destination.error_files[local_rank] = str(folder / "elastic_error.json")
        return destination


def run_ranks(paths: RunPaths, nproc: int, first_attempt: int, max_restarts: int, port: int) -> dict[int, int]:
    """Start the ranks and wait for them.

    Returns:
        Exit code of every rank that failed (negative = killed by that signal); empty if none did.
    """
    for part in ("elastic", "launcher"):
        logging.getLogger(f"torch.distributed.{part}").setLevel(logging.CRITICAL)
    if RENDEZVOUS not in rendezvous_handler_registry._registry:
        rendezvous_handler_registry.register(
            RENDEZVOUS, lambda given: LoopbackRendezvous(int(given.endpoint.rpartition(":")[2]), given.run_id)
        )
    # Without local_addr the agent resolves this host's name, which laptops may not know. SIGINT, SIGTERM and SIGHUP are
    # handled by dtk: the ranks are asked for a checkpoint first.
    options: dict[str, Any] = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": nproc, "max_restarts": max_restarts}
    options |= {"run_id": uuid.uuid4().hex, "rdzv_backend": RENDEZVOUS, "rdzv_endpoint": f"127.0.0.1:{port}"}
    options |= {"local_addr": "127.0.0.1", "signals_to_handle": "SIGQUIT", "shutdown_timeout": SHUTDOWN_TIMEOUT_S}
    options |= {"monitor_interval": 0.1, "logs_specs": RankLogs(paths, first_attempt)}
    fields = {field.name for field in dataclasses.fields(LaunchConfig)}
    config = LaunchConfig(**{key: value for key, value in options.items() if key in fields})
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "dtk.rank", str(paths.root), str(os.getpid()))
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


@contextmanager
def rank_environment(variables: dict[str, str]) -> Iterator[dict[str, str]]:
    """Set variables for the ranks, unless the user has set them, and let them find dtk; restored afterwards.

    Yields:
        what the user's own environment overrode, name -> the user's value.
    """
    before = dict(os.environ)
    overruled = {name: before[name] for name, value in variables.items() if before.get(name, value) != value}
    os.environ.update(importable({**variables, **before}))
    try:
        yield overruled
    finally:
        os.environ.clear()
        os.environ.update(before)
