"""What dtk adds around DeepSpeed's functions; training with it is tested in tests/dist/test_deepspeed.py."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from dtk.engines.deepspeed import engine as deepspeed


@pytest.fixture
def marks(monkeypatch):
    """The communication regions that were opened: operation, bytes and dimension."""
    opened = []

    def communication(*mark):
        opened.append(mark)
        return nullcontext()

    monkeypatch.setattr(deepspeed, "communication", communication)
    return opened


@pytest.mark.parametrize(
    ("op", "region"),
    [
        ("all_gather_into_tensor", "all_gather"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("all_reduce", "all_reduce"),
    ],
)
def test_an_operation_gets_a_region_with_the_bytes_of_its_largest_buffer(marks, op, region):
    call = deepspeed._marked(op, lambda *inputs, **more: len(inputs) + len(more))
    assert call(torch.ones(2), output=torch.ones(8)) == 2
    assert marks == [(region, 32, "dp")]


def test_a_list_of_tensors_counts_as_one_buffer(marks):
    deepspeed._marked("all_gather", lambda *inputs: None)([torch.ones(4), torch.ones(4)], torch.ones(4))
    assert marks == [("all_gather", 32, "dp")]


def test_the_optimizer_steps_the_engine_and_its_rate_is_the_wrapped_ones():
    steps = []
    inner = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    engine = SimpleNamespace(step=lambda: steps.append(1), optimizer=SimpleNamespace(optimizer=inner))
    optimizer = deepspeed.EngineOptimizer(engine)
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert steps == [1] and inner.param_groups[0]["lr"] == 0.5
