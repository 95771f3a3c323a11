"""One observed step on tensors without memory: its calls, what each part held, and the rank that has most."""

import dataclasses
from typing import Any

import pytest

from dtk.plan.formulas.shape import model_shape
from dtk.simulate.step import MICRO_BATCHES, OWN_GRADIENTS, Observed, simulate_step
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.zero1 import Zero1Config
from tests.unit.plan.closed_form_jobs import TINY, job

pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = dataclasses.replace(TINY, layers=2, width=32, heads=2, context_length=16)
WHOLE = 4 * model_shape(MODEL).parameters


def observed(strategy: Any, rank: int = 0, rounds: int = 1, model: Any = MODEL) -> Observed:
    return simulate_step(job(4, strategy, model, sequence=16, rounds=rounds), rank, 4, 8, 1)


def test_ddp_holds_everything_and_reduces_once() -> None:
    step = observed(DDPConfig())
    assert 4 * step.parameters == WHOLE
    assert ("forward", "block 0") in step.parts and ("backward", "block L-1") in step.parts
    optimizer = [sizes for (region, _), sizes in step.parts.items() if region == "optimizer"]
    kept = max(optimizer, key=lambda sizes: sum(sizes.values()))
    assert kept["parameters"] == kept[OWN_GRADIENTS] == WHOLE
    assert kept["optimizer states"] >= 2 * WHOLE
    assert [(call.op, call.size_bytes) for call in step.calls if call.group != "control"] == [("all_reduce", WHOLE)]
    assert step.classes == MODEL.vocab_size and step.loads == []


def test_fsdp_holds_a_quarter_of_the_states_and_a_few_units() -> None:
    model = dataclasses.replace(MODEL, layers=4)
    step = observed(FSDPConfig(), model=model)
    whole = 4 * step.parameters
    forward = step.parts["forward", "between"]
    assert forward["parameters"] == pytest.approx(whole / 4, rel=0.02)
    assert 0.2 * whole < forward["gathered parameters"] < 0.9 * whole
    ops = [call.op for call in step.calls if call.group != "control"]
    assert ops.count("all_gather") == 2 * 4 + 1 and ops.count("reduce_scatter") == 5
    assert {call.ranks for call in step.calls} == {(0, 1, 2, 3)}


def test_micro_batches_between_the_first_and_the_last_are_left_out() -> None:
    step = observed(DDPConfig(), rounds=6)
    assert step.micro_batches == MICRO_BATCHES
    (call,) = (call for call in step.calls if call.op == "all_reduce" and call.size_bytes == WHOLE)
    assert call.micro_batch == MICRO_BATCHES - 1, "gradients are reduced in the last one"


def test_zero1_says_what_each_rank_owns() -> None:
    step = observed(Zero1Config(), rank=2)
    assert step.rank == 2
    assert 4 * sum(step.loads) == WHOLE and len(step.loads) == 4
