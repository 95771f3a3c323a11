"""Starts the ranks of this machine with torch's elastic agent, inside the parent's process."""

import logging
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from diagnostics.contract.artifacts import RunPaths
from dtk.launch.processes import importable
from dtk.parallel import loopback

SHUTDOWN_TIMEOUT_S = 5  # Chosen: longer than a rank's last dumps may take (3 s), before SIGKILL follows SIGTERM.
ExitCodes = dict[int, dict[int, int]]
"""Attempt -> rank -> exit code of every rank that failed before the agent stopped the others; negative = signal."""


class LoopbackRendezvous(StaticTCPRendezvous):
    """A store in the parent that listens on loopback; the agent and its ranks use it across all restarts.

    torch's `c10d` rendezvous keeps its state as a pickle in a store that listens on every interface, so anyone who
    reaches the port can execute code in the launcher. A single node needs no agreement: it is always rank 0 of 1.
    """

    def __init__(self, port: int, run_id: str) -> None:
        self.store = loopback.serve_store(port)
        super().__init__(loopback.ADDRESS, self.store.port, rank=0, world_size=1, run_id=run_id, timeout=0)

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store and this node's rank, without waiting for other nodes."""
        address = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(PrefixStore(self.run_id, self.store), self.rank, self.world_size, address)


class RankLogs(LogsSpecs):
    """Sends each rank's output to `logs/attempt_<n>/rank_<r>/`; nothing reaches the terminal directly."""

    def __init__(self, paths: RunPaths, attempt: int) -> None:
        super().__init__(str(paths.root / "logs"), Std.ALL)
        self.paths = paths
        self.attempt = attempt

    @property
    def root_log_dir(self) -> str:
        """Logs folder of the run."""
        return str(self.paths.root / "logs")

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the folders of the attempt and return its file names."""
        destination = LogsDest()
        for local_rank, env in envs.items():
            folder = self.paths.logs(self.attempt, int(env["RANK"]))
            folder.mkdir(parents=True, exist_ok=True)
            destination.stdouts[local_rank] = str(folder / "stdout.log")
            destination.stderrs[local_rank] = str(folder / "stderr.log")
            destination.tee_stdouts[local_rank] = ""
            destination.tee_stderrs[local_rank] = ""
            destination.error_files[local_rank] = str(folder / "elastic_error.json")
        return destination


def run_ranks(
    paths: RunPaths, nproc: int, first_attempt: int, max_restarts: int, port: int, exit_codes: ExitCodes
) -> bool:
    """Start the ranks, wait for them, and return whether the last attempt failed.

    `port` is that of the store, 0 = any; `exit_codes` receives those of each attempt that failed.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # Without local_addr the agent resolves this host's name, which laptops may not know. SIGINT, SIGTERM and SIGHUP are
    # handled by dtk: the ranks are asked for a checkpoint first.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    rendezvous = LoopbackRendezvous(port, uuid.uuid4().hex)
    # torch 2.11 waits for 30 s, which nothing public changes.
    takes_timeout = "shutdown_timeout" in signature(LocalElasticAgent).parameters
    timeout: dict[str, Any] = {"shutdown_timeout": SHUTDOWN_TIMEOUT_S} if takes_timeout else {}
    try:
        for restarts in range(max_restarts + 1):
            # The agent keeps no exit codes of an attempt that it restarts itself, so each attempt has an agent.
            spec = WorkerSpec(
                "default_role", nproc, rendezvous, entrypoint=sys.executable, max_restarts=0,
                args=("-u", "-m", "dtk.rank", str(paths.root), str(os.getpid()), str(restarts)),
                local_addr=loopback.ADDRESS,
            )  # fmt: skip
            attempt = first_attempt + restarts
            result = LocalElasticAgent(spec, RankLogs(paths, attempt), **timeout).run()
            if not result.is_failed():
                return False
            exit_codes[attempt] = {rank: failure.exitcode for rank, failure in result.failures.items()}
        return True
    finally:
        rendezvous.shutdown()


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
