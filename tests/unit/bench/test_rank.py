"""How a rank divides its time among sizes: agreed figures only, never more than the budget."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from dtk.bench.rank import _NOT_OFFERED, Bench
from dtk.parallel.verified import timed_s
from tests.unit.bench.test_measure import SPEC


def bench(**spec: Any) -> Bench:
    context: Any = SimpleNamespace(rank=0, world_size=2, device=torch.device("cpu"), backend="gloo", control=None)
    return Bench(replace(SPEC, **{"passes": 5, "sizes_bytes": (1024, 2048), **spec}), context)


def test_a_fast_call_is_repeated_up_to_the_limit() -> None:
    assert bench(seconds=1000.0)._calls(1e-6) == SPEC.calls


def test_a_slow_call_is_made_once_while_its_passes_fit_and_else_left_out() -> None:
    item = bench(seconds=10.0)
    assert item._calls(1.9) == 1
    assert item._calls(1.9) == 0, "the first one has used the budget up"
    assert bench(seconds=10.0)._calls(2.1) == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 10.0), max_size=20), st.floats(0.5, 60.0))
def test_all_passes_together_stay_within_the_budget(calls_s: list[float], seconds: float) -> None:
    item = bench(seconds=seconds, warm_up=0)
    spent_s = 0.0
    for once_s in calls_s:
        calls = item._calls(once_s)
        assert 0 <= calls <= item.spec.calls
        spent_s += calls * once_s * item.spec.passes
        assert item.spent_s == spent_s or abs(item.spent_s - spent_s) < 1e-9 * max(1.0, spent_s)
    assert spent_s <= seconds * (1 + 1e-9)


def test_a_backend_that_lacks_an_operation_is_told_from_a_failure() -> None:
    for text in ("Invalid scalar type", "alltoall is not supported", "does not support float16", "Not implemented"):
        assert _NOT_OFFERED.search(text)
    assert not _NOT_OFFERED.search("Connection closed by peer")


def test_times_are_of_as_many_calls_as_asked_for() -> None:
    count = 0

    def call() -> None:
        nonlocal count
        count += 1

    assert timed_s(call, "cpu", calls=7) >= 0 and count == 7
