"""Set-up under sharding: no rank ever holds the whole model, not even for a moment."""

import pytest

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from tests.dist.ranks import run_ranks

MIB = 2**20
WORLD_SIZE = 4
# 34 blocks of 12.6 MB beside an embedding of 8 MB: no single parameter dominates.
LARGE = schema.GPTConfig(name="large", vocab_size=4000, context_length=64, layers=34, heads=4, width=512)


def peaks(strategy):
    """Largest growth of each rank's memory over set-up, and the bytes of the model."""
    changes = {"model": LARGE, "strategy": strategy}
    results = run_ranks("tests.dist.training_ranks:peak_while_setting_up", WORLD_SIZE, changes, "")
    (model_bytes,) = {size for _, size in results}
    assert model_bytes >= 400 * MIB
    return [peak for peak, _ in results], model_bytes


@pytest.mark.timeout(200)
@pytest.mark.parametrize("strategy", [FSDPConfig(), HSDPConfig(dp_replicate=1)], ids=lambda s: s.name)
def test_no_rank_ever_holds_the_whole_model(strategy):
    """Each may hold its quarter and what one parameter takes while it is filled; half is far from the whole."""
    grown, model_bytes = peaks(strategy)
    assert max(grown) < model_bytes / 2, [f"{peak / MIB:.0f} of {model_bytes / MIB:.0f} MiB" for peak in grown]
    assert min(grown) > model_bytes / WORLD_SIZE / 2, "the measurement itself is wrong: a shard needs memory"


@pytest.mark.timeout(200)
def test_the_measurement_sees_a_whole_model():
    """Under DDP every rank does hold it, so the test above could fail."""
    grown, model_bytes = peaks(DDPConfig())
    assert min(grown) >= model_bytes
