"""Ranks that torchrun or Slurm started, from rendezvous to exit code: rank 0 decides, and shares it over the store."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, set_debug_level_from_env

from diagnostics.contract.artifacts import RunPaths, Verdict, read_status
from diagnostics.contract.formatting import counted
from diagnostics.evidence.endings import is_victim
from dtk.config.placement import Placement, place
from dtk.config.schema import Config
from dtk.config.strict import from_plain
from dtk.errors import DtkError
from dtk.launch.blame import find_failure
from dtk.launch.console import Console, farewell
from dtk.launch.prepare import cuda_devices, rank_variables
from dtk.parallel.context import meet
from dtk.rank.job import Job
from dtk.rank.worker import work
from dtk.record.run_folder import close

SHARE_TIMEOUT_S = 300.0  # torch's own timeout of a store: rank 0 may tokenise data meanwhile.
VANISH_S = 2.0  # Chosen: a lost peer's exit is visible soon after its closed connections; waiting delays the failure.
LAUNCHERS = {"torchrun": "torchrun", "slurm": "Slurm"}  # Foreign launchers, spelled as users write them.


@dataclass(frozen=True, slots=True)
class Shared:
    """Rank 0's decision for all ranks."""

    run_folder: str
    config: dict[str, Any]
    """Plain values of every key of the resolved configuration."""
    device: str
    backend: str
    attempt: int


def join(launcher: str, decide: Callable[[], Shared]) -> int:
    """Join the other ranks, let rank 0 decide, and train. DtkError on every rank if rank 0 cannot continue.

    `decide` is called on rank 0, and after a restart by torchrun only if nothing was decided before.
    """
    if launcher == "slurm":
        os.environ.update(adopt_slurm(os.environ))
    store = meet(SHARE_TIMEOUT_S)
    shared = share(store, int(os.environ["RANK"]), decide)
    config = from_plain(shared.config)
    paths = RunPaths(Path(shared.run_folder))
    job = Job.from_environment(paths.root, shared.device, shared.backend, shared.attempt, own_launcher=False)
    rank_environment(config, paths)
    keep_logs(paths, job)

    def end_hung_run(verdict: Verdict) -> None:
        close_failed(job)
        print_farewell(paths, 1)

    code = work(config, job, store, on_failure=partial(close_failed, job), on_hang=end_hung_run)
    if job.rank == 0:
        print_farewell(paths, code)
    return code


def local_size(environment: Mapping[str, str]) -> int:
    """Return the ranks on this machine according to torchrun or Slurm (`2(x3),1`: three nodes with 2, one with 1)."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"):
        if match := re.match(r"\d+", environment.get(name, "")):
            return int(match[0])
    return 1


def place_here(config: Config, launcher: str) -> Placement:
    """Return the placement with the ranks and threads that the launcher set up; DtkError as from `place`."""
    section, world_size = config.launcher, int(os.environ["WORLD_SIZE"])
    placement = place(section, config.strategy, cuda_devices(section.device), local_size(os.environ))
    threads = section.threads if isinstance(section.threads, int) else torch.get_num_threads()
    reasons = (detected(launcher, os.environ, world_size), *placement.reasons)
    return replace(placement, world_size=world_size, threads=threads, reasons=reasons)


def detected(launcher: str, environment: Mapping[str, str], world_size: int) -> str:
    """Describe the launcher of the ranks, and the number of nodes."""
    names = ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    nodes = next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), None)
    if nodes is None:
        nodes = -(-world_size // local_size(environment))
    return f"{LAUNCHERS[launcher]} detected, {counted(nodes, 'node')}"


def adopt_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torch expects, from those that srun sets.

    The port is derived from the job id, so that two jobs on one node use different ones. DtkError if srun did not
    provide the address of the first node.
    """
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    host = environment.get("MASTER_ADDR") or first_host(nodes) or environment.get("SLURM_LAUNCH_NODE_IPADDR")
    if not host:
        raise DtkError("Slurm started this rank, but SLURM_JOB_NODELIST is not set", fix="set MASTER_ADDR yourself")
    port = 15000 + int(environment.get("SLURM_JOB_ID", "0")) % 20000
    adopted = {"RANK": environment["SLURM_PROCID"], "WORLD_SIZE": environment["SLURM_NTASKS"], "MASTER_ADDR": host}
    adopted |= {"LOCAL_RANK": environment.get("SLURM_LOCALID", "0"), "GROUP_RANK": environment.get("SLURM_NODEID", "0")}
    return {**adopted, "MASTER_PORT": environment.get("MASTER_PORT", str(port))}


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: `gpu[03-07,9],login` -> `gpu03`."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?", nodes)
    if match is None:
        return ""
    prefix, numbers = match.groups()
    return prefix + re.split(r"[,-]", numbers)[0] if numbers else prefix


def share(store: PrefixStore, rank: int, decide: Callable[[], Shared]) -> Shared:
    """Let rank 0 decide; all ranks return its decision, or raise DtkError if rank 0 cannot continue.

    After a restart by torchrun the earlier decision is reused, so that the run continues in its folder.
    """
    if rank == 0:
        outer = store.underlying_store
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and outer.check(["dtk/run"])
        try:
            shared = Shared(**json.loads(outer.get("dtk/run"))) if again else decide()
        except DtkError as error:
            store.set("dtk/shared", json.dumps({"error": [error.what, error.why, error.fix]}))
            raise
        text = json.dumps(asdict(shared))
        outer.set("dtk/run", text)
        store.set("dtk/shared", text)
        return shared
    answer = json.loads(store.get("dtk/shared"))
    if "error" in answer:
        raise DtkError(*answer["error"])
    return Shared(**answer)


def rank_environment(config: Config, paths: RunPaths) -> None:
    """Set the variables that torch needs before it creates a communicator; the user's values take precedence."""
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    for name, value in rank_variables(config, paths, os.environ, one_machine=one_machine).items():
        os.environ.setdefault(name, value)
    set_debug_level_from_env()  # torch read TORCH_DISTRIBUTED_DEBUG at import.


def keep_logs(paths: RunPaths, job: Job) -> None:
    """Copy this rank's output, including that of native code, to the run folder; the launcher still receives it."""
    folder = paths.logs(job.attempt, job.rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stream, name in ((sys.stdout, "stdout.log"), (sys.stderr, "stderr.log")):
            stream.flush()
            copier = subprocess.Popen(
                ["tee", "-a", str(folder / name)],
                stdin=subprocess.PIPE,
                stdout=stream.fileno(),
                start_new_session=True,
                restore_signals=False,  # Python ignores SIGPIPE, so tee continues with the file if the pipe closes.
            )
            assert copier.stdin is not None
            os.dup2(copier.stdin.fileno(), stream.fileno())
            copier.stdin.close()
    except OSError as error:
        print(f"dtk: no logs in the run folder: {error}", file=sys.stderr)


def print_farewell(paths: RunPaths, code: int) -> None:
    """Print the last lines on rank 0 if torchrun or Slurm started the ranks."""
    farewell(Console(), paths, replace(read_status(paths.status), exit_code=code))


def close_failed(job: Job) -> None:
    """Write the run's final status after this rank failed, as a foreign launcher does not.

    Every failing rank writes what is known at that time, so the last one has seen all earlier errors and names the
    first. A rank that lost a peer waits a while for its exit: a killed process closes its connections before its exit
    is visible, and only the foreign launcher gets its exit code.
    """
    paths = RunPaths(job.run_folder)
    failure, state = find_failure(paths, job.attempt, job.world_size, {})
    ends_s = time.monotonic() + VANISH_S
    while state == "failed" and time.monotonic() < ends_s:
        if failure.rank >= 0 and not (failure.rank == job.rank and is_victim(failure.kind)):
            break
        time.sleep(0.1)
        failure, state = find_failure(paths, job.attempt, job.world_size, {})
    close(paths, state, 1, reason=failure.reason, failure=failure)
