"""A step walked on a ledger: what is taken is given back, and recomputation trades activations for work."""

import pytest

from dtk.config.schema import Config
from dtk.plan.formulas.closed_form import closed_form
from dtk.plan.formulas.walk import in_units, stream_item_bytes
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.single import SingleConfig
from tests.unit.plan.closed_form_jobs import job


def test_only_fully_shard_keeps_states_in_units() -> None:
    assert in_units(job(2, FSDPConfig()))
    assert not in_units(job(2, DDPConfig())) and not in_units(job(1, SingleConfig()))


@pytest.mark.parametrize(
    ("strategy", "precision", "expected"),
    [(DDPConfig(), "bfloat16", 4), (FSDPConfig(), "bfloat16", 2), (FSDPConfig(), "float32", 4)],
)
def test_the_residual_stream_is_cast_by_fsdp_and_not_by_autocast(
    strategy: object, precision: str, expected: int
) -> None:
    assert stream_item_bytes(job(2, strategy, precision=precision)) == expected


@pytest.mark.parametrize("strategy", [DDPConfig(), FSDPConfig()])
def test_recomputing_every_block_lowers_the_peak_and_every_second_one_by_part_of_it(strategy: object) -> None:
    none, second, every = (predicted(job(2, strategy, sequence=256, micro=8, recompute=n), 2) for n in (0, 2, 1))
    assert none > second > every
    assert 0.3 < (none - second) / (none - every) < 0.8


def predicted(config: Config, world_size: int) -> int:
    return closed_form(config, world_size, world_size).memory.peak_bytes
