"""What single, ddp and zero1 hold: buckets, views of them, whole parameters dealt out."""

from typing import Any

from dtk.config.schema import AdamWConfig, SGDConfig
from dtk.plan.formulas.replication import Replicated, owned_elements
from dtk.plan.formulas.shape import model_shape
from dtk.plan.formulas.tape import Ledger
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from tests.unit.plan.closed_form_jobs import TINY, job

SHAPE = model_shape(TINY)
WHOLE = 4 * SHAPE.parameters


def held(strategy: Any, ranks: int = 4, optimizer: Any = None) -> Replicated:
    config = job(ranks, strategy, optimizer=optimizer)
    made = Replicated(config, SHAPE, config.mesh(ranks), Ledger(), False)
    made.settle()
    return made


def test_one_rank_has_parameters_and_moments_and_no_buckets() -> None:
    made = held(SingleConfig(), ranks=1)
    assert made.ledger.in_use == {"parameters": WHOLE, "optimizer states": 2 * WHOLE + 4 * len(SHAPE.shapes)}


def test_buckets_are_the_gradients_where_gradients_are_views() -> None:
    assert held(DDPConfig()).ledger.in_use["gradients"] == WHOLE
    apart = held(DDPConfig(gradient_as_bucket_view=False)).ledger.in_use
    assert (apart["buckets"], apart["gradients"]) == (WHOLE, 0)
    remembers = held(DDPConfig(communication_hook="topk")).ledger.in_use
    assert remembers["gradients"] + remembers["buckets"] == 2 * WHOLE, "errors of compression are kept besides"


def test_the_fullest_rank_of_zero1_is_the_one_with_most_elements() -> None:
    made = held(Zero1Config())
    owned = owned_elements(SHAPE.shapes, 4)
    assert made.rank == owned.index(max(owned))
    tensors = -(-len(SHAPE.shapes) // 4)
    assert made.ledger.in_use["optimizer states"] == 2 * 4 * max(owned) + 4 * tensors
    assert made.ledger.in_use["parameters"] == WHOLE


def test_gradients_are_added_up_and_freed_by_the_update() -> None:
    made = held(SingleConfig(), ranks=1)
    before = made.ledger.total_bytes
    for _ in range(3):
        made.gradient("head.weight", made.ledger.allocate("gradients", 40))
    assert made.ledger.total_bytes == before + 40 and len(made.piled()) == 1
    made.update()
    assert made.ledger.total_bytes == before and not made.piled()


def test_in_the_last_micro_batch_ddp_puts_its_view_in_their_place() -> None:
    made = held(DDPConfig())
    before = made.ledger.total_bytes
    made.last = False
    made.gradient("head.weight", made.ledger.allocate("gradients", 40))
    assert made.ledger.total_bytes == before + 40 and made.piled() == [], "views are let go of one by one"
    made.last = True
    made.gradient("head.weight", made.ledger.allocate("gradients", 40))
    assert made.ledger.total_bytes == before and not made.gradients


def test_an_update_in_backward_keeps_no_gradient() -> None:
    made = held(SingleConfig(), ranks=1, optimizer=AdamWConfig(in_backward=True))
    made.gradient("head.weight", made.ledger.allocate("gradients", 40))
    assert not made.gradients and made.ledger.in_use["gradients"] == 0


def test_the_update_needs_its_temporaries_at_once() -> None:
    made = held(SingleConfig(), ranks=1, optimizer=SGDConfig(weight_decay=0.1))
    made.ledger.enter("optimizer")
    made.update()
    assert made.temporary_bytes == 4 * TINY.width * 4 * TINY.width, "on the CPU: those of the largest parameter"
    assert made.ledger.by_region["optimizer"] == made.ledger.total_bytes + made.temporary_bytes
