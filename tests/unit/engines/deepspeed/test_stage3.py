"""DeepSpeed's stage 3: what is gathered once, and what again for backward, by numbers of elements."""

from math import prod
from typing import Any

import pytest

from dtk.config.compose import compose
from dtk.engines.deepspeed.stage3 import gathered, gathered_elements, persistent
from dtk.plan.formulas.shape import model_shape

ALL = 2**62


def elements_of(shapes: Any, turns: Any) -> list[list[int]]:
    """Elements of each parameter that each all_gather brings."""
    return [[prod(shapes[p]) for p in call] for turn in turns for call in (turn.fetched, turn.prefetched) if call]


LIMITS = {
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 0,
    "stage3_model_persistence_threshold": ALL,
    "stage3_max_live_parameters": 10**9,
    "stage3_max_reuse_distance": 10**9,
}
BLOCK = [(96, 32), (96,), (32, 32), (32,), (32,), (32,), (128, 32), (128,), (32, 128), (32,), (32,), (32,)]
SHAPES = [(256, 32), (64, 32), *BLOCK * 3]
MODULES = 2 + 3 * 6
P = sum(map(prod, SHAPES))


@pytest.mark.parametrize(
    ("changed", "calls", "elements", "most"),
    [
        # All but the first module's arrive in one buffer, and are copied while the last modules wait for it.
        ({}, 2, P, 2 * P - 256 * 32),
        ({"stage3_prefetch_bucket_size": 0}, MODULES, P, P),
        ({"stage3_max_live_parameters": 1}, MODULES, P, P),
        # The last module's turn in backward comes at once, and yet it is freed.
        ({"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}, 2 * MODULES, 2 * P, 256 * 32),
        ({"stage3_param_persistence_threshold": ALL}, 0, 0, 0),
    ],
)
def test_limits_bound_what_is_held(changed: dict[str, int], calls: int, elements: int, most: int) -> None:
    turns = gathered(SHAPES, LIMITS | changed)
    brought = elements_of(SHAPES, turns)
    running = max(turn.running for way in gathered_elements(SHAPES, turns) for turn in way)
    assert (len(brought), sum(map(sum, brought)), running) == (calls, elements, most)


def test_small_parameters_stay_as_long_as_all_of_them_are_few() -> None:
    limits = LIMITS | {"stage3_param_persistence_threshold": 100, "stage3_model_persistence_threshold": 150}
    assert persistent([(100,), (101,), (51,), (50,)], limits) == [True, False, False, True]


@pytest.mark.parametrize(("model", "times"), [("gpt2", 1), ("llama3_8b", 1.88), ("llama3_70b", 1.98)])
def test_large_models_are_gathered_again_for_backward_with_the_defaults(model: str, times: float) -> None:
    config: Any = compose([f"model={model}", "strategy=deepspeed_zero3"]).config
    shapes = model_shape(config.model, 1).shapes
    turns = gathered(shapes, config.strategy.tuned())
    brought = elements_of(shapes, turns)
    whole = sum(map(prod, shapes))
    assert sum(map(sum, brought)) == pytest.approx(times * whole, rel=0.01)
    assert max(turn.running for way in gathered_elements(shapes, turns) for turn in way) <= 2 * (10**9 + 50_000_000)
