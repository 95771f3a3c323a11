"""A run on this machine: starts ranks with torch's elastic agent in this process, and writes the final status."""

import json
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

from diagnostics.contract.artifacts import RunPaths, Status, complete_checkpoints, read_status
from diagnostics.contract.secrets import masked
from dtk.config.placement import Placement, own_threads
from dtk.config.schema import Config
from dtk.config.strict import to_plain
from dtk.errors import USER_ERROR
from dtk.launch.blame import find_failure, user_error
from dtk.launch.console import Console, Follower
from dtk.launch.prepare import rank_variables
from dtk.launch.processes import importable
from dtk.launch.stopping import StopSignals
from dtk.parallel import loopback
from dtk.rank import job
from dtk.record.run_folder import begin, close

SHUTDOWN_TIMEOUT_S = 5  # Chosen: longer than a rank's last dumps may take (3 s), before SIGKILL follows SIGTERM.
ExitCodes = dict[int, dict[int, int]]
"""Attempt -> rank -> exit code of every rank that failed before the agent stopped the others; negative = signal."""


def launch(config: Config, paths: RunPaths, placement: Placement, attempt: int, console: Console) -> Status:
    """Run all ranks to their end and close the status; prints progress."""
    begin(paths, attempt)
    # If the user has set a number, each rank sets its threads itself, if configured.
    threads = 0 if own_threads() else placement.threads
    variables = rank_variables(config, paths, os.environ, threads=threads, one_machine=True)
    variables |= {job.DEVICE: placement.device, job.BACKEND: placement.backend, job.ATTEMPT: str(attempt)}
    if masked(plain := to_plain(config)) != plain:
        variables[job.CONFIG] = json.dumps(plain)
    with rank_environment(variables) as own_variables, StopSignals() as stop:
        for name, value in own_variables.items():
            console.line(f"your {name}={value} is kept")
        ended: ExitCodes = {}
        with Follower(paths, console, placement.nproc, attempt, ended, stop.repeat) as follower:
            try:
                restarts, port = config.launcher.max_restarts, config.launcher.master_port
                failed = run_ranks(paths, placement.nproc, attempt, restarts, port, ended)
            except Exception as error:
                close(paths, "failed", 1, reason=f"the launcher failed: {type(error).__name__}: {error}")
                raise
        last_attempt = follower.attempt
        exit_codes = ended.get(last_attempt, {}) if failed else {}
        failed_by_itself = any(code > 0 for code in exit_codes.values())  # Other ranks were asked to stop.
        if stop.signal_number is not None and (stop.twice or not failed_by_itself):
            return _stopped(paths, stop)
    if not exit_codes:
        return _ended_in_order(config, paths)
    return _failed(paths, placement, last_attempt, exit_codes)


def _ended_in_order(config: Config, paths: RunPaths) -> Status:
    """Handle the normal exit of all ranks; rank 0 wrote the status unless the disk was full."""
    status = read_status(paths.status)
    if status.state != "running":
        return status
    if config.checkpoint.at_end and paths.checkpoint(config.train.steps) not in complete_checkpoints(paths):
        reason = "the run folder could not be written at the end, and holds no checkpoint of the last step"
        return close(paths, "failed", 1, reason=reason)
    return close(paths, "finished", 0)


def _stopped(paths: RunPaths, stop: StopSignals) -> Status:
    """Write the status of a stopped run; rank 0 has written it if it had time."""
    assert stop.signal_number is not None
    status = read_status(paths.status)
    if status.state == "finished":
        return status
    # Rank 0 reports more, such as why there is no checkpoint, but knows only the parent's own signal.
    stated = status.reason if status.state == "preempted" else ""
    reason = "stopped at once, without a checkpoint" if stop.twice else stated or "stopped by a signal"
    return close(paths, "preempted", 128 + stop.signal_number, reason=reason)


def _failed(paths: RunPaths, placement: Placement, attempt: int, exit_codes: dict[int, int]) -> Status:
    """Write the status of a failed run: a user's error is one line, anything else names the first failed rank."""
    message = user_error(paths, attempt, placement.nproc)
    if message is not None:
        print(f"dtk: {message}", file=sys.stderr, flush=True)
        return close(paths, "failed", USER_ERROR, reason=message)
    failure, state = find_failure(paths, attempt, placement.nproc, exit_codes)
    return close(paths, state, 1, reason=failure.reason, failure=failure)


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

    Yield what the user's own environment overrode, name -> the user's value.
    """
    before = dict(os.environ)
    overruled = {name: before[name] for name, value in variables.items() if before.get(name, value) != value}
    os.environ.update(importable({**variables, **before}))
    try:
        yield overruled
    finally:
        os.environ.clear()
        os.environ.update(before)
