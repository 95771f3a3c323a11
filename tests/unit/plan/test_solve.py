"""The largest that fits: bisection, and the sizes that grow together; the same job on other numbers of ranks."""

import pytest

from dtk.errors import DtkError
from dtk.plan.job import Machine, planned_job
from dtk.plan.solve import at_world_size, largest, parse_world_sizes, scaling


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("power", [0.5, 1, 2, 3])
def test_every_edge_is_found(limit: int, power: float) -> None:
    for edge in range(0, 130):
        result = largest(range(1, limit + 1), lambda n, edge=edge: n**power <= edge**power)
        assert result == (min(edge, limit) or None)


@pytest.mark.parametrize("edge", [1, 2, 47, 6666, 700_001])
def test_an_edge_between_steps_is_found(edge: int) -> None:
    assert largest(range(1, 1 << 24), lambda n: n <= edge) == edge


def test_the_number_of_guesses_grows_with_the_logarithm() -> None:
    ns: list[int] = []

    def fits(n: int) -> bool:
        ns.append(n)
        return 1_000_000 + 3_217 * n <= 21_446_000

    assert largest(range(1, 100_001), fits) == 6355
    assert len(ns) <= 2 * 13 + 1, "13 bits"


JOB = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64", "launcher.world_size=4"]


def test_world_sizes_are_read_in_any_order_once_each() -> None:
    assert parse_world_sizes("64, 8,512,8") == (8, 64, 512)


@pytest.mark.parametrize("text", ["", "8,", "8;16", "eight", "-8", "8.5", "0", "9999999", "\u0668"])
def test_world_sizes_that_are_none_are_one_line(text: str) -> None:
    with pytest.raises(DtkError) as raised:
        parse_world_sizes(text)
    assert "--world-size" in str(raised.value)


def test_the_batch_grows_with_the_data_parallel_ranks() -> None:
    job = planned_job([*JOB, "strategy=fsdp", "train.global_batch_size=32", "train.micro_batch_size=2"])
    grown = at_world_size(job, 16).config
    assert (grown.train.global_batch_size, grown.train.micro_batch_size) == (128, 2)
    assert grown.batch_plan(16).accumulation_steps == job.config.batch_plan(4).accumulation_steps == 4
    cut = planned_job([*JOB, "strategy=fsdp", "parallel.tp=2", "train.global_batch_size=8"])
    assert at_world_size(cut, 16).config.train.global_batch_size == 32, "two ranks share their samples"


def test_a_number_that_does_not_fit_the_mesh_says_why() -> None:
    job = planned_job([*JOB, "strategy=fsdp", "parallel.tp=2"])
    points = scaling(job, (2, 3, 4), Machine(8))
    assert [point.prediction is None for point in points] == [False, True, False]
    assert points[1].problem and not points[0].problem
    with pytest.raises(DtkError, match="the job fits none of --world-size 3,5"):
        scaling(job, (3, 5), Machine(8))


def test_memory_of_fsdp_falls_with_the_ranks() -> None:
    points = scaling(planned_job([*JOB, "strategy=fsdp"]), (2, 8, 64), Machine(8))
    peaks = [point.prediction.memory.peak_bytes for point in points if point.prediction is not None]
    assert peaks == sorted(peaks, reverse=True) and len(peaks) == 3


def test_one_process_does_not_scale() -> None:
    job = planned_job([*JOB[:-1], "strategy=single"])
    with pytest.raises(DtkError, match="strategy=single runs in one process"):
        scaling(job, (1, 2), Machine(8))
