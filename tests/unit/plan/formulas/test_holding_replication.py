"""What single, ddp and zero1 hold: buckets, views of them, whole parameters dealt out as torch does it."""

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dtk.config.schema import AdamWConfig, SGDConfig
from dtk.plan.formulas.holding import Replicated, owned_elements
from dtk.plan.formulas.shape import model_shape
from dtk.plan.formulas.tape import Ledger
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from tests.unit.plan.closed_form_jobs import TINY, job
from tests.work import calls_in

SHAPE = model_shape(TINY)
WHOLE = 4 * SHAPE.parameters


def replicated_of(strategy: Any, ranks: int = 4, optimizer: Any = None) -> Replicated:
    config = job(ranks, strategy, optimizer=optimizer)
    replicated = Replicated(config, SHAPE, config.mesh(ranks), Ledger(), False)
    replicated.settle()
    return replicated


def test_one_rank_has_parameters_and_moments_and_no_buckets() -> None:
    replicated = replicated_of(SingleConfig(), ranks=1)
    assert replicated.ledger.in_use == {"parameters": WHOLE, "optimizer states": 2 * WHOLE + 4 * len(SHAPE.shapes)}


def test_buckets_are_the_gradients_where_gradients_are_views() -> None:
    assert replicated_of(DDPConfig()).ledger.in_use["gradients"] == WHOLE
    apart = replicated_of(DDPConfig(gradient_as_bucket_view=False)).ledger.in_use
    assert (apart["buckets"], apart["gradients"]) == (WHOLE, 0)
    remembers = replicated_of(DDPConfig(communication_hook="topk")).ledger.in_use
    assert remembers["gradients"] + remembers["buckets"] == 2 * WHOLE, "errors of compression are kept besides"


def test_the_fullest_rank_of_zero1_is_the_one_with_most_elements() -> None:
    replicated = replicated_of(Zero1Config())
    owned = owned_elements(SHAPE.shapes, 4)
    assert replicated.rank == owned.index(max(owned))
    tensors = -(-len(SHAPE.shapes) // 4)
    assert replicated.ledger.in_use["optimizer states"] == 2 * 4 * max(owned) + 4 * tensors
    assert replicated.ledger.in_use["parameters"] == WHOLE


def test_gradients_are_added_up_and_freed_by_the_update() -> None:
    replicated = replicated_of(SingleConfig(), ranks=1)
    before = replicated.ledger.total_bytes
    for _ in range(3):
        replicated.gradient("head.weight", replicated.ledger.allocate("gradients", 40))
    assert replicated.ledger.total_bytes == before + 40 and len(replicated.piled()) == 1
    replicated.update()
    assert replicated.ledger.total_bytes == before and not replicated.piled()


def test_in_the_last_micro_batch_ddp_puts_its_view_in_their_place() -> None:
    replicated = replicated_of(DDPConfig())
    before = replicated.ledger.total_bytes
    replicated.last = False
    replicated.gradient("head.weight", replicated.ledger.allocate("gradients", 40))
    assert replicated.ledger.total_bytes == before + 40 and replicated.piled() == [], "views are let go of one by one"
    replicated.last = True
    replicated.gradient("head.weight", replicated.ledger.allocate("gradients", 40))
    assert replicated.ledger.total_bytes == before and not replicated.gradients


def test_an_update_in_backward_keeps_no_gradient() -> None:
    replicated = replicated_of(SingleConfig(), ranks=1, optimizer=AdamWConfig(in_backward=True))
    replicated.gradient("head.weight", replicated.ledger.allocate("gradients", 40))
    assert not replicated.gradients and replicated.ledger.in_use["gradients"] == 0


def test_the_update_needs_its_temporaries_at_once() -> None:
    replicated = replicated_of(SingleConfig(), ranks=1, optimizer=SGDConfig(weight_decay=0.1))
    replicated.ledger.enter("optimizer")
    replicated.update()
    assert replicated.temporary_bytes == 4 * TINY.width * 4 * TINY.width, "on the CPU: those of the largest parameter"
    assert replicated.ledger.by_region["optimizer"] == replicated.ledger.total_bytes + replicated.temporary_bytes


SHAPES = st.lists(st.sampled_from([(3, 5), (4, 4), (16,), (2, 2, 2), (7,), (1, 1), (40, 3)]), min_size=1, max_size=60)


def dealt_one_by_one(shapes: list[tuple[int, ...]], ranks: int) -> list[int]:
    """Matrices, then vectors; the largest first, each to the rank that has least, the first of equals."""
    owned = [0] * ranks
    for matrices in (True, False):
        group = [prod(shape) for shape in shapes if (len(shape) >= 2) == matrices]
        for size in sorted(group, reverse=True):
            owned[owned.index(min(owned))] += size
    return owned


@given(shapes=SHAPES, ranks=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_dealing_in_rounds_is_dealing_one_by_one(shapes: list[tuple[int, ...]], ranks: int) -> None:
    assert sorted(owned_elements(shapes, ranks)) == sorted(dealt_one_by_one(shapes, ranks))


@pytest.mark.parametrize(("count", "ranks"), [(1, 4), (5, 3), (12, 4), (13, 4)])
def test_equal_parameters_are_counted_off(count: int, ranks: int) -> None:
    each, more = divmod(count, ranks)
    assert owned_elements([(2, 3)] * count, ranks) == [6 * (each + (rank < more)) for rank in range(ranks)]


def test_ranks_without_parameters_own_nothing() -> None:
    assert owned_elements([(2, 3), (9,)], 4) == [6, 9, 0, 0]


def test_a_deep_model_on_many_ranks_is_cheap() -> None:
    shapes = [(100, 100), (100,), (400, 100)] * 4000
    owned, calls = calls_in(lambda: owned_elements(shapes, 512))
    assert sum(owned) == sum(map(prod, shapes))
    assert calls < 60_000
