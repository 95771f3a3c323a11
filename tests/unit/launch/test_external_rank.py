"""A rank that torchrun started meets the others, trains by what rank 0 decided, and closes the run."""

import pytest

from diagnostics.contract.artifacts import RunPaths, read_status
from tests.cli.command import FAULTY, ROOT, environment
from tests.dist.ranks import free_port
from tests.unit.launch.conftest import SMALL
from tests.warm_python import run_module


def rank(*job: str):
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return run_module(["dtk.run", *job, "train.global_batch_size=4"], environment(**variables), ROOT, 60)


@pytest.mark.timeout(90)
def test_the_only_rank_of_a_job_trains_and_says_what_to_do_next(tmp_path):
    done = rank(*SMALL, f"runs_folder={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    status = read_status(RunPaths(folder).status)
    assert (status.state, status.step, status.exit_code) == ("finished", 2, 0)
    assert "step 2/2" in done.stdout and done.stdout.splitlines()[-1].startswith("next:")
    assert "step 2/2" in (RunPaths(folder).logs(0, 0) / "stdout.log").read_text()


@pytest.mark.timeout(90)
def test_the_rank_that_fails_closes_the_run(tmp_path):
    done = rank(*FAULTY, "+model.arguments.fault=raise", "+model.arguments.rank=0", f"runs_folder={tmp_path}")
    (folder,) = tmp_path.iterdir()
    status = read_status(RunPaths(folder).status)
    assert (done.returncode, status.state, status.failure.rank) == (1, "failed", 0), done.stdout + done.stderr
    assert status.failure.reason.startswith("ValueError: bad batch")
