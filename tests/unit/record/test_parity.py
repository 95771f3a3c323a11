"""The hash of initial weights: a sum that every way of dividing the elements gives, and that any change changes."""

import copy

import pytest
import torch
from torch import nn

from dtk.parallel.placement import mark_copy
from dtk.record.parity import weights_sum


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(33, 17), nn.LayerNorm(17), nn.Linear(17, 5, bias=False))


@pytest.mark.parametrize("parts", [2, 3, 7, 1000])
def test_replicas_divide_the_work(parts: int) -> None:
    whole = weights_sum(model())
    assert sum(weights_sum(model(), part, parts) for part in range(parts)) % 2**64 == whole


def test_stages_that_share_a_weight_divide_the_work_too() -> None:
    ends = [model(), model()]
    for index, end in enumerate(ends):
        for parameter in end.parameters():
            mark_copy(parameter, index, 2)
    assert sum(weights_sum(end) for end in ends) % 2**64 == weights_sum(model())


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = weights_sum(model())
    monkeypatch.setattr("dtk.record.parity._CPU_BLOCK", 10)
    assert weights_sum(model()) == whole


def test_every_change_shows() -> None:
    before = weights_sum(model())
    assert weights_sum(model()) == before
    assert weights_sum(model(1)) != before
    swapped, nudged, renamed, signed = (copy.deepcopy(model()) for _ in range(4))
    with torch.no_grad():
        weight = swapped[0].weight.view(-1)
        weight[:2] = weight[:2].flip(0)
        nudged[0].weight.view(torch.int32)[0, 0] += 1
        signed[1].bias.fill_(-0.0)
    names = nn.ModuleDict({"a": renamed[0], "1": renamed[1], "2": renamed[2]})
    result = {weights_sum(item) for item in (swapped, nudged, names, signed)}
    assert len(result | {before}) == 5


def test_it_has_not_changed_between_versions_of_dtk() -> None:
    """Runs of different versions are compared by it."""
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6, dtype=torch.float32).view(2, 3))
        layer.bias.fill_(0.5)
    assert f"{weights_sum(layer):016x}" == "2489eba4a7b5e023"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_other_number_formats(dtype: torch.dtype) -> None:
    layer = nn.Linear(9, 3, dtype=dtype)
    whole = weights_sum(layer)
    assert sum(weights_sum(layer, part, 4) for part in range(4)) % 2**64 == whole
    with torch.no_grad():
        layer.weight[1, 2] += 1
    assert weights_sum(layer) != whole


def test_a_scalar_and_an_empty_parameter() -> None:
    parameter_dict = nn.ParameterDict(
        {"scalar": nn.Parameter(torch.tensor(2.0)), "none": nn.Parameter(torch.zeros(0, 4))}
    )
    assert weights_sum(parameter_dict) != 0
