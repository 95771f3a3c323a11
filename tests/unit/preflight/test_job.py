"""What is made small for a simulation changes no call: shares of parameters, and the length of samples."""

import pytest
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param

from dtk.config.compose import compose
from dtk.preflight.job import SEQUENCE, _Chunks, simulated_config


@pytest.mark.parametrize("shape", [(12, 3), (11,), (3, 4), (1,), (5, 2)])
def test_shares_of_a_parameter_are_those_of_fsdp(shape: tuple[int, ...]) -> None:
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    for count in (1, 4, 8):
        theirs, ours = _fsdp_param._chunk_with_empty(whole, count, dim=0), _Chunks(whole, count, dim=0)
        assert len(ours) == len(theirs)
        assert all(torch.equal(ours[index], part) for index, part in enumerate(theirs))


def test_samples_are_short_and_steps_reach_past_the_fault() -> None:
    config = simulated_config(compose(["model=gpt2_tiny", "fault=rank0_evaluation"]).config, 2)
    assert config.data.sequence_length == SEQUENCE
    assert config.train.steps == config.fault.step + 1  # type: ignore[union-attr]
