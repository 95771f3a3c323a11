"""A rank's place in the job, from what torchrun and dtk's own launcher set."""

from pathlib import Path

import pytest

from dtk.rank.job import Job

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "GROUP_RANK": "2", "WORLD_SIZE": "8", "TORCHELASTIC_RESTART_COUNT": "3"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


def test_restarts_count_on_from_the_first_attempt() -> None:
    job = Job.from_environment(Path("runs/a"), "cpu", "gloo", 2, own_launcher=True)
    assert (job.rank, job.local_rank, job.node_rank, job.world_size) == (5, 1, 2, 8)
    assert (job.attempt, job.own_launcher, job.device, job.backend) == (5, True, "cpu", "gloo")


def test_slurm_sets_neither_node_nor_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROUP_RANK")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    job = Job.from_environment(Path("runs/a"), "cuda", "nccl", 1, own_launcher=False)
    assert (job.node_rank, job.attempt) == (0, 1)


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_place_is_never_guessed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(KeyError, match=name):
        Job.from_environment(Path("runs/a"), "cpu", "gloo", 0, own_launcher=True)
