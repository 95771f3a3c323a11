import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from diagnostics.contract.artifacts import RunPaths, read_status
from dtk.errors import DtkError
from dtk.launch.cluster import Shared, adopt_slurm, detected, first_host, local_size, share
from dtk.rank.job import started_by
from tests.cli.command import FAULTY, ROOT, environment
from tests.dist.ranks import free_port
from tests.unit.launch.conftest import SMALL
from tests.warm_python import run_module


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu[03-07,9],login", "gpu03"), ("node1,node2", "node1"), ("n7", "n7"), ("a-b[1,4]", "a-b1"), ("", "")],
)
def test_first_host(nodes, host):
    assert first_host(nodes) == host


def test_who_started_this_process():
    assert started_by({}) is None
    assert started_by({"RANK": "0", "WORLD_SIZE": "2"}) == "torchrun"
    assert started_by({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}) == "slurm"
    assert started_by({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None, "sbatch without srun runs the local way"


def test_slurm_variables_become_torch_variables():
    slurm = {
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "8",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_JOB_ID": "123456",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    }
    assert adopt_slurm(slurm) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": str(15000 + 123456 % 20000),
    }
    assert adopt_slurm({**slurm, "MASTER_ADDR": "head", "MASTER_PORT": "29500"})["MASTER_ADDR"] == "head"


@pytest.mark.parametrize(
    ("environment", "ranks", "here", "text"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, 8, 4, "torchrun detected, 2 nodes"),
        ({"LOCAL_WORLD_SIZE": "2"}, 2, 2, "torchrun detected, 1 node"),
        ({"SLURM_NTASKS_PER_NODE": "8", "SLURM_NNODES": "3"}, 24, 8, "Slurm detected, 3 nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NUM_NODES": "4"}, 7, 2, "Slurm detected, 4 nodes"),
        ({}, 2, 1, "Slurm detected, 2 nodes"),
    ],
)
def test_who_was_detected_on_how_many_nodes(environment, ranks, here, text):
    assert local_size(environment) == here
    launcher = "slurm" if text.startswith("Slurm") else "torchrun"
    assert detected(launcher, environment, ranks) == text


def test_slurm_without_a_node_list_is_one_line():
    with pytest.raises(DtkError, match="MASTER_ADDR"):
        adopt_slurm({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})


SHARED = Shared("/runs/a", {"seed": 1}, "cpu", "gloo", 0)


def stores() -> tuple[HashStore, PrefixStore]:
    outer = HashStore()
    return outer, PrefixStore("attempt_0", outer)


def test_what_rank_0_decides_all_ranks_return():
    _, store = stores()
    assert share(store, 0, lambda: SHARED) == SHARED
    assert share(store, 1, lambda: pytest.fail("only rank 0 decides")) == SHARED


def test_an_error_of_rank_0_is_raised_on_every_rank():
    def refuse() -> Shared:
        raise DtkError("no", "because", "so")

    _, store = stores()
    for rank in (0, 1):
        with pytest.raises(DtkError, match="no: because - so"):
            share(store, rank, refuse)


def test_after_a_restart_the_run_goes_on_in_its_folder(monkeypatch):
    outer, store = stores()
    share(store, 0, lambda: SHARED)
    again = PrefixStore("attempt_1", outer)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert share(again, 0, lambda: pytest.fail("it was decided before")) == SHARED
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    other = Shared("/runs/b", {}, "cpu", "gloo", 0)
    assert share(PrefixStore("other", outer), 0, lambda: other) == other, "another job in the same store"


def test_a_restart_before_anything_was_decided_decides(monkeypatch):
    _, store = stores()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert share(store, 0, lambda: SHARED) == SHARED


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
