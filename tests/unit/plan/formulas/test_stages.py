"""A rank of a pipeline by formulas: its stages, messages, memory, and a bound that the whole walk never goes below."""

import dataclasses
from typing import Any

import pytest

from dtk.config.schema import ParallelConfig
from dtk.plan.formulas.shape import model_shape
from dtk.plan.formulas.stages import (
    least_bytes,
    message_bytes,
    messages,
    rank_memory,
    rank_stages,
    stage_declarations,
    stage_shape,
    sums_of_gradients,
)
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.zero1 import Zero1Config
from tests.unit.plan.closed_form_jobs import LLAMA, TINY, job

EIGHT = dataclasses.replace(TINY, layers=8)


def piped(strategy: Any, ranks: int, model: Any = EIGHT, rounds: int = 8, **parallel: Any) -> Any:
    config = job(ranks, strategy, model, rounds=rounds)
    section = ParallelConfig(**parallel)
    dp = ranks // section.pp // section.tp // section.cp
    train = dataclasses.replace(config.train, global_batch_size=2 * rounds * dp)
    return dataclasses.replace(config, parallel=section, train=train)


def test_stages_hold_every_parameter_once_but_the_tied_table() -> None:
    whole = model_shape(EIGHT)
    parts = [stage_shape(whole, range(first, first + 4)) for first in (0, 4)]
    table = EIGHT.vocab_size * EIGHT.width
    assert sum(part.parameters for part in parts) == whole.parameters + table
    assert parts[1].after[0][0] == "token_embedding.weight"
    untied = model_shape(dataclasses.replace(LLAMA, layers=8))
    assert sum(stage_shape(untied, range(n, n + 2)).parameters for n in (0, 2, 4, 6)) == untied.parameters


def test_a_middle_stage_has_blocks_only() -> None:
    middle = stage_shape(model_shape(EIGHT), range(2, 5))
    assert (middle.before, middle.after, middle.layers) == ((), (), 3)


def test_the_stages_of_a_rank_and_its_messages() -> None:
    config = piped(DDPConfig(), 2, pp=2, schedule="interleaved_1f1b", stages_per_rank=2)
    assert rank_stages(config, 0) == {0: range(0, 2), 2: range(4, 6)}
    assert rank_stages(config, 1) == {1: range(2, 4), 3: range(6, 8)}
    # The first stage sends forward only, the last backward only, those between both ways.
    assert (messages(config, 0), messages(config, 1)) == (1 + 2, 2 + 1)
    assert message_bytes(config) == 4 * 2 * 64 * EIGHT.width
    assert messages(piped(DDPConfig(), 1, pp=1), 0) == 0


def test_what_a_rank_sends_per_step() -> None:
    config = piped(DDPConfig(), 4, pp=2)
    for place in (0, 1):
        calls = {(call.op, call.group): call for call in stage_declarations(config, 4, place)}
        sent = 8 * messages(config, place)
        assert calls["send", "pp"].count == calls["recv", "pp"].count == sent
        assert calls["send", "pp"].size_bytes == sent * message_bytes(config)
    alone = stage_declarations(piped(DDPConfig(), 2, pp=1), 2, 0)
    assert {call.group for call in alone} == {"dp"}


def test_gradients_that_several_ranks_share_are_added_up() -> None:
    config = piped(DDPConfig(), 2, pp=2)
    mesh = config.mesh(2)
    table = 4 * EIGHT.vocab_size * EIGHT.width
    for blocks in (range(0, 4), range(4, 8)):
        assert [(call.op, call.group, call.size_bytes) for call in sums_of_gradients(config, mesh, blocks)] == [
            ("all_reduce", "pp", table)
        ]
    assert sums_of_gradients(config, mesh, range(1, 3)) == []
    cut = piped(FSDPConfig(), 4, pp=1, tp=2, sequence_parallel=True)
    (call,) = sums_of_gradients(cut, cut.mesh(4), range(8))
    assert (call.op, call.group) == ("all_reduce", "tp")


@pytest.mark.parametrize("strategy", [DDPConfig(), FSDPConfig()])
@pytest.mark.parametrize("parallel", [{"pp": 1}, {"pp": 2}, {"pp": 4}, {"pp": 2, "schedule": "gpipe"}, {"tp": 2}])
def test_the_bound_is_below_the_walk(strategy: Any, parallel: dict[str, Any]) -> None:
    config = piped(strategy, 8, **parallel)
    bound, walked = least_bytes(config, 8), rank_memory(config, 8).peak_bytes
    assert 0.3 * walked < bound <= walked


def test_the_bound_counts_the_shortest_of_a_ranks_stages() -> None:
    chosen = {"schedule": "interleaved_1f1b", "stages_per_rank": 2, "blocks_per_stage": [4, 2, 1, 1]}
    config = piped(DDPConfig(), 8, pp=2, **chosen)
    assert least_bytes(config, 8) <= rank_memory(config, 8).peak_bytes


def test_the_first_rank_of_1f1b_has_most_micro_batches_in_flight() -> None:
    config = piped(DDPConfig(), 4, pp=4, rounds=16)
    activations = [rank_memory(config, 4, place).at_peak_bytes["activations"] for place in range(3)]
    assert activations == sorted(activations, reverse=True)
    every_one = piped(DDPConfig(), 4, pp=4, rounds=16, schedule="gpipe")
    assert rank_memory(every_one, 4).at_peak_bytes["activations"] > 2 * activations[0]


def test_the_number_of_a_rank_along_pp() -> None:
    config = piped(DDPConfig(), 8, pp=4)
    assert [rank_memory(config, 8, place).rank for place in range(4)] == [0, 2, 4, 6]
    dealt = rank_memory(piped(Zero1Config(), 8, cp=2), 8).rank
    assert dealt == rank_memory(piped(Zero1Config(), 8), 8).rank, "whole parameters are dealt out over cp too"


def test_zero_bubble_holds_more_than_1f1b_until_its_weight_gradients() -> None:
    plain, split = (rank_memory(piped(DDPConfig(), 4, pp=4, schedule=name), 4, 2) for name in ("1f1b", "zero_bubble"))
    assert plain.peak_bytes < split.peak_bytes < 2 * plain.peak_bytes
