"""Verification on one rank: right results pass, and each kind of wrong one is counted. Two ranks: tests/cli."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from dtk.parallel.verified import make, wrong_elements

CPU = torch.device("cpu")
ALONE = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"]


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_right_results_are_right(name: str, dtype: torch.dtype) -> None:
    buffers = make(name, 1024, dtype, CPU)
    assert buffers.target.nbytes == 1024
    assert wrong_elements(name, buffers) == 0
    assert not buffers.source.any(), "timed on zeros, which no repeated sum overflows"


@pytest.mark.parametrize("name", ALONE)
def test_wrong_results_are_counted(name: str) -> None:
    buffers = make(name, 1024, torch.float32, CPU)

    def spoil() -> None:
        buffers.call()
        buffers.target[17] += 1
        buffers.target[200] -= 1

    assert wrong_elements(name, dataclasses.replace(buffers, call=spoil)) == 2


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"])
def test_a_call_that_does_nothing_is_wrong(name: str) -> None:
    buffers = make(name, 1024, torch.float32, CPU)
    assert wrong_elements(name, dataclasses.replace(buffers, call=lambda: None)) > 30


@pytest.mark.parametrize("name", ALONE)
def test_a_result_that_is_shifted_is_wrong(name: str) -> None:
    buffers = make(name, 1024, torch.float32, CPU)

    def shift() -> None:
        buffers.call()
        buffers.target.copy_(buffers.target.roll(64))

    assert wrong_elements(name, dataclasses.replace(buffers, call=shift)) > 30
