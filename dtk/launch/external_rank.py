"""A rank that torchrun or Slurm started, from rendezvous to exit code; the caller on rank 0 decides what it runs."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from diagnostics.contract.artifacts import RunPaths, Verdict
from dtk.config.strict import from_plain
from dtk.launch import cluster
from dtk.parallel.context import meet
from dtk.rank.job import Job
from dtk.rank.worker import work


def join(launcher: str, decide: Callable[[], cluster.Shared]) -> int:
    """Join the other ranks, let rank 0 decide, and train.

    `decide` is called on rank 0, and after a restart by torchrun only if nothing was decided before.

    Raises:
        DtkError: on every rank, if rank 0 cannot continue.
    """
    if launcher == "slurm":
        os.environ.update(cluster.adopt_slurm(os.environ))
    store = meet(cluster.SHARE_TIMEOUT_S)
    shared = cluster.share(store, int(os.environ["RANK"]), decide)
    config = from_plain(shared.config)
    paths = RunPaths(Path(shared.run_folder))
    job = Job.from_environment(paths.root, shared.device, shared.backend, shared.attempt, own_launcher=False)
    cluster.rank_environment(config, paths)
    cluster.keep_logs(paths, job)

    def end_hung_run(verdict: Verdict) -> None:
        cluster.close_failed(job)
        cluster.print_farewell(paths, 1)

    code = work(config, job, store, on_failure=partial(cluster.close_failed, job), on_hang=end_hung_run)
    if job.rank == 0:
        cluster.print_farewell(paths, code)
    return code
