"""From overrides and a number of ranks to the job that is planned: the rules of a run, without this machine."""

import pytest

from dtk.config.checks import check_ranks
from dtk.errors import DtkError
from dtk.plan.job import planned_job, ranks_of, settled_job

TINY = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64"]


def test_the_batch_is_divided_over_the_ranks_of_all_nodes() -> None:
    job = planned_job([*TINY, "strategy=fsdp", "launcher.world_size=8", "train.global_batch_size=64"])
    assert (ranks_of(job.config), job.config.train.micro_batch_size) == (8, 4)
    assert job.plain["launcher"]["world_size"] == 8
    assert job.plain["train"]["micro_batch_size"] == 4


def test_a_job_for_other_machines_says_its_ranks_itself() -> None:
    slurm = [*TINY, "launcher=slurm", "launcher.nodes=3"]
    assert ranks_of(planned_job([*slurm, "launcher.gpus_per_node=8"]).config) == 24
    assert ranks_of(planned_job([*slurm, "launcher.nproc=2"]).config) == 6
    with pytest.raises(DtkError, match=r"more than launcher\.gpus_per_node=8"):
        planned_job([*slurm, "launcher.gpus_per_node=8", "launcher.nproc=9"])


def test_ranks_are_those_of_world_size_then_nproc_then_the_machine() -> None:
    assert ranks_of(planned_job([*TINY, "launcher.nproc=4"]).config) == 4
    assert ranks_of(planned_job([*TINY, "launcher.nproc=4", "launcher.world_size=8"]).config) == 8
    assert ranks_of(planned_job([*TINY, "strategy=ddp"], devices=8).config) == 8
    assert ranks_of(planned_job([*TINY, "strategy=single"], devices=8).config) == 1
    assert ranks_of(planned_job([*TINY, "launcher.device=cpu"]).config) == 2
    assert ranks_of(planned_job([*TINY, "launcher.world_size=8"], world_size=4).config) == 4


def test_the_default_batch_grows_with_the_ranks_and_says_so() -> None:
    job = planned_job([*TINY, "launcher.world_size=64"])
    assert job.config.train.global_batch_size == 64
    assert job.overrides[-1] == "train.global_batch_size=64"
    accumulated = planned_job([*TINY, "launcher.world_size=64", "train.micro_batch_size=2"])
    assert accumulated.config.train.global_batch_size == 128
    assert planned_job([*TINY, "launcher.world_size=4"]).overrides == [*TINY, "launcher.world_size=4"]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["launcher.world_size=6", "strategy=hsdp", "strategy.dp_replicate=4"], "3 x 2, 2 x 3, 1 x 6"),
        (["launcher.world_size=64", "train.global_batch_size=100"], "cannot be split over 64 ranks"),
        (["launcher.world_size=64", "strategy=single"], "use launcher.world_size=1, or strategy=ddp"),
        (["launcher.world_size=0"], "launcher.world_size=0 is out of range: it must be 1 to 1000000"),
        (["launcher.nproc=-3"], "launcher.nproc=-3 is out of range"),
        (["launcher.world_size=abc"], "launcher.world_size"),
        (["launcher.wrld_size=8"], "did you mean launcher.world_size"),
        (["launcher.world_size=8", "launcher.backend=nccl", "launcher.device=cpu"], "needs a GPU"),
    ],
)
def test_what_no_run_could_be_is_refused(overrides: list[str], text: str) -> None:
    with pytest.raises(DtkError) as raised:
        planned_job([*TINY, *overrides])
    assert text in str(raised.value)


def test_nothing_of_this_machine_is_asked() -> None:
    """Neither CUDA devices nor a free port nor data: the job is for other machines."""
    texts = ["launcher.device=cuda", "launcher.backend=nccl", "launcher.master_port=1"]
    job = planned_job([*TINY, *texts, "strategy=fsdp", "data=tokens", "data.path=/nowhere", "launcher.world_size=16"])
    assert ranks_of(job.config) == 16


def test_a_job_can_be_settled_again_for_other_ranks() -> None:
    job = planned_job([*TINY, "strategy=fsdp", "launcher.world_size=4", "train.global_batch_size=16"])
    assert ranks_of(settled_job(job, 2).config) == 2
    with pytest.raises(DtkError, match="cannot be split"):
        settled_job(job, 3)


def test_a_run_with_other_ranks_than_planned_is_refused() -> None:
    config = planned_job([*TINY, "strategy=fsdp", "launcher.world_size=4"]).config
    check_ranks(config, 4, "cpu")
    with pytest.raises(DtkError) as raised:
        check_ranks(config, 2, "cpu")
    assert "launcher.world_size=4, but this run has 2 ranks" in str(raised.value)
    assert "launcher.nproc=4" in str(raised.value)


def test_a_degree_of_minus_one_is_a_number_in_the_job() -> None:
    job = planned_job(["model=gpt2_tiny", "strategy=ddp", "parallel.tp=-1", "parallel.pp=2"], None, 8)
    assert job.config.parallel.tp == job.plain["parallel"]["tp"] == 4
