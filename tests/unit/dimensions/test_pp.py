"""Pipeline parallel: stages keep names, together they are the model, and shared weights have the sum of gradients."""

import itertools
from typing import Any

import pytest
import torch

from dtk.config.schema import GPTConfig
from dtk.dimensions.pp import Shared, cut, declare_messages, joined, shared_parameters
from dtk.models.build import build_model
from dtk.parallel.pipeline import Action
from dtk.parallel.placement import replica
from dtk.sharding.declared import Collective
from tests.unit.rank_threads import on_ranks, whole_axis

CONFIG = GPTConfig(name="probe", vocab_size=14, context_length=8, layers=5, heads=2, width=8)


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return build_model(CONFIG, []).eval()


def stages_of(model: Any, count: int) -> list[Any]:
    ends = [CONFIG.layers * number // count for number in range(count + 1)]
    cuts = list(itertools.starmap(range, itertools.pairwise(ends)))
    copies = [build_model(CONFIG, []).eval() for _ in range(count)]
    for copy in copies:
        copy.load_state_dict(model.state_dict())
    return [cut(copy, number, cuts) for number, copy in enumerate(copies)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_stages_one_after_the_other_are_the_model(model: Any, count: int) -> None:
    tokens = torch.randint(0, 14, (2, 8), generator=torch.Generator().manual_seed(1))
    stream = None
    for stage in stages_of(model, count):
        stream = stage(tokens, stream=stream)
    assert stream is not None and torch.equal(stream, model(tokens))


def test_a_stage_keeps_the_global_names_of_what_it_holds(model: Any) -> None:
    whole = set(model.state_dict())
    kept = [set(stage.state_dict()) for stage in stages_of(model, 3)]
    assert set().union(*kept) == whole
    assert kept[0] & kept[2] == {"token_embedding.weight"}, "tied: the output projection of the last stage"
    assert all(name.startswith("blocks.") for name in kept[1]) and "position_embedding.weight" not in kept[2]


def test_stages_of_one_rank_join_under_their_names(model: Any) -> None:
    first, middle, last = stages_of(model, 3)
    assert joined([middle]) is middle
    both: Any = joined([first, last])
    assert set(both.state_dict()) == set(first.state_dict()) | set(last.state_dict())
    assert both.fused_heads == 2
    parameters = dict(both.named_parameters())
    assert parameters["blocks.0.mlp.up.weight"] is first.blocks[0].mlp.up.weight


def test_shared_weights_get_the_sum_of_both_ends() -> None:
    def work(rank: int) -> Any:
        model: Any = build_model(CONFIG, [])
        shared = shared_parameters(model, whole_axis(rank, 2, "pp"), [0, 1], ["token_embedding"])
        assert isinstance(shared, Shared) and shared.declare() == [Collective("all_reduce", "pp", 1, 4 * 14 * 8)]
        shared.sum_gradients()  # None yet: nothing to add up.
        (weight,) = shared.parameters
        weight.grad = torch.full_like(weight, rank + 1.0)
        shared.sum_gradients()
        return replica(weight), weight.grad.unique().tolist()

    assert on_ranks(2, work) == [((0, 2), [3.0]), ((1, 2), [3.0])]


def test_only_the_ends_share_and_only_if_weights_are_tied() -> None:
    def work(rank: int) -> bool:
        axis = whole_axis(rank, 3, "pp")
        model = build_model(CONFIG, [])
        assert shared_parameters(model, axis, [0, 1, 2], []) is None
        return rank == 1 and shared_parameters(model, axis, [0, 1, 2], ["token_embedding"]) is None

    assert on_ranks(3, work) == [False, True, False]


def test_messages_are_counted_by_direction() -> None:
    order = tuple(
        Action(kind, 1, i) for i in range(3) for kind in ("receive_forward", "forward", "send_forward", "backward")
    )
    assert declare_messages(order, 64) == [Collective("send", "pp", 3, 192), Collective("recv", "pp", 3, 192)]
    assert declare_messages((Action("forward", 0, 0),), 64) == []
