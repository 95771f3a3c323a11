from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dtk.config.schema import RecordConfig
from dtk.record import numerics
from dtk.record.numerics import Numerics, fingerprints
from tests.work import calls_in

NAN = torch.tensor(float("nan"))
SCALAR = torch.tensor(1.0)


class Listener:
    """Stands for the recorder: keeps the events."""

    def __init__(self):
        self.events = []

    def event(self, name, **fields):
        self.events.append((name, fields))


@pytest.fixture
def watcher():
    def make(level="light", **record):
        listener = Listener()
        context = SimpleNamespace(device=torch.device("cpu"), rank=0, world_size=1)
        return Numerics(RecordConfig(level=level, **record), listener, context, {"dp": [[0]]}), listener.events

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int8])
def test_one_bit_changes_the_fingerprint(dtype):
    tensor = torch.arange(100).to(dtype)
    before = fingerprints([tensor, tensor])
    assert before[0] == before[1]
    bits = torch.view_as_real(tensor) if dtype.is_complex else tensor
    whole = bits.reshape(-1).view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.element_size()])
    whole[41] ^= 1
    assert fingerprints([tensor]) != before[:1]


def test_blocks_do_not_change_it(monkeypatch):
    tensors = [torch.randn(1000), torch.randn(0), torch.randn(7, 9).T]
    whole = fingerprints(tensors)
    monkeypatch.setattr(numerics, "_CPU_BLOCK", 64)
    assert torch.equal(fingerprints(tensors), whole)


def test_the_order_of_parameters_counts():
    a, b = fingerprints([torch.ones(3), torch.zeros(3)]), fingerprints([torch.zeros(3), torch.ones(3)])
    assert numerics.combined(a) != numerics.combined(b)


def test_the_first_time_only(watcher):
    watch, events = watcher()
    model = nn.Linear(2, 2)
    for step, loss in enumerate([SCALAR, NAN, SCALAR, NAN], 1):
        watch.after_step(step, loss, model, wait=True, last=False)
    assert events == [("non_finite", {"step": 2, "figure": "loss", "value": "nan"})]


def test_a_step_that_was_not_looked_at_is_remembered(watcher):
    """As on a GPU between two logged steps: the device keeps the step, nothing waits for it."""
    watch, events = watcher()
    watch._note(0, 3, NAN)
    watch._note(0, 4, torch.tensor(float("inf")))
    assert events == []
    watch.after_step(5, NAN, nn.Linear(2, 2), wait=True, last=False)
    assert events == [("non_finite", {"step": 3, "figure": "loss", "value": "nan"})]


def test_gradients_of_a_later_step_name_no_parameter(watcher):
    watch, events = watcher()
    model = nn.Linear(2, 2)
    model.weight.grad, model.bias.grad = torch.full((2, 2), float("nan")), torch.ones(2)
    watch._note(1, 3, torch.tensor(float("inf")))
    watch.gradient(5, NAN, model, wait=True)
    about = {"step": 3, "figure": "grad_norm", "value": "inf", "parameter": None}
    assert events == [("non_finite", {**about, "parameters_affected": 0, "parameters_seen": 0})]

    watch, events = watcher()
    watch.gradient(5, NAN, model, wait=True)
    assert events[0][1]["parameter"] == "weight"
    assert (events[0][1]["parameters_affected"], events[0][1]["parameters_seen"]) == (1, 2)


def test_off_looks_at_nothing(watcher):
    watch, events = watcher("off", replica_hash_every=1)
    watch.gradient(1, NAN, nn.Linear(2, 2), wait=True)
    watch.after_step(1, NAN, nn.Linear(2, 2), wait=True, last=True)
    assert events == []


def test_a_step_calls_few_functions(watcher):
    watch, _ = watcher()
    model = nn.Linear(2, 2)

    def one_step():
        watch.gradient(1, SCALAR, model, wait=True)
        watch.after_step(1, SCALAR, model, wait=True, last=False)

    one_step()
    assert calls_in(one_step)[1] < 60, "20 when this was written"
