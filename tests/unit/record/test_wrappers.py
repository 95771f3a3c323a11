"""Wrappers of torch.distributed: put in place and taken out without a trace, and calls recorded as the user's."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile
from dtk.record import wrappers


@pytest.fixture(autouse=True)
def torchs_own():
    """Torch's own functions: an earlier test of this process may have left the wrappers in place."""
    wrappers.remove()


@pytest.fixture
def log(tmp_path):
    """The log of a rank that is alone in its group, while the wrappers are in place."""
    log = wrappers.record(tmp_path / "rank_00000.ring", 0, 1, 0)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield log
    wrappers.remove()
    if dist.is_initialized():
        dist.destroy_process_group()


def calls(log):
    path = log.ring.path
    return [(call.op, call.state) for call in RingFile(path, path.name, 0, Limits()).read().records]


def test_removing_restores_torchs_functions(tmp_path):
    originals = {name: vars(c10d)[name] for name in ("all_reduce", "isend", "_check_op", "destroy_process_group")}
    wait, init = dist.Work.wait, c10d.P2POp.__init__
    wrappers.record(tmp_path / "rank_00000.ring", 0, 1, 0)
    try:
        assert all(vars(c10d)[name] is not original for name, original in originals.items())
        assert dist.all_reduce is c10d.all_reduce and dist.Work.wait is not wait
    finally:
        wrappers.remove()
    assert {name: vars(c10d)[name] for name in originals} == originals
    assert dist.all_reduce is originals["all_reduce"]
    assert dist.Work.wait is wait and c10d.P2POp.__init__ is init


def test_a_call_is_recorded_once_and_none_after_removal(log):
    value = torch.full((2,), 3.0)
    dist.all_reduce(value)
    assert value.tolist() == [3.0, 3.0]
    before = calls(log)
    assert [op for op, _ in before] == ["all_reduce"]
    wrappers.remove()
    dist.all_reduce(value)
    assert calls(log) == before


def test_torchs_own_error_reaches_the_user_and_the_call_is_kept(log):
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        dist.broadcast(torch.ones(1), src=5)
    assert [op for op, _ in calls(log)] == ["broadcast"]


def test_a_reduction_of_gradients_is_in_backward_without_any_region(log):
    """A loop of somebody else opens no regions, and what autograd calls is still told from the rest of the step."""
    weight = torch.ones(2, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad))
    (2 * weight).sum().backward()
    dist.all_reduce(torch.ones(1))
    records = RingFile(log.ring.path, log.ring.path.name, 0, Limits()).read().records
    assert [(record.region, record.numel) for record in records] == [("backward", 2), ("", 1)]
