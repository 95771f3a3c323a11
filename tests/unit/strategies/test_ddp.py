"""DDP: buckets, what each hook sends, and the section that takes over where a model is cut."""

from math import prod

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import PrecisionConfig
from dtk.errors import DtkError
from dtk.sharding.declared import Collective, ModelShapes
from dtk.strategies.ddp import DDPConfig, bucket_reduction, ddp_collectives, gradient_buckets
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config

SHAPES = st.lists(st.sampled_from([(300, 300), (64,), (1000, 40), (3,), (2000, 2)]), max_size=12)


@given(SHAPES, st.sampled_from([0.01, 0.3, 1.0, 25.0]))
@settings(max_examples=60, deadline=None)
def test_buckets_tile_the_parameters_and_close_at_the_limit(shapes: list[tuple[int, ...]], cap_mb: float) -> None:
    buckets = gradient_buckets(cap_mb, shapes)
    assert [i for bucket in buckets for i in bucket] == list(range(len(shapes)))
    ready = [4 * prod(shape) for shape in reversed(shapes)]
    first = 2**20 if cap_mb == 25.0 else int(cap_mb * 2**20)
    for number, bucket in enumerate(buckets):
        limit = first if number == 0 else int(cap_mb * 2**20)
        sizes = [ready[i] for i in bucket]
        assert sum(sizes[:-1]) < limit, "closed by the parameter that reaches the limit"
        assert sum(sizes) >= limit or number == len(buckets) - 1


MATRIX, VECTOR, SMALL = (64, 256), (64,), (8, 8)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (DDPConfig(), [("all_reduce", 4 * (16384 + 64 + 64))]),
        (DDPConfig(communication_hook="bf16"), [("all_reduce", 2 * (16384 + 64 + 64))]),
        (DDPConfig(communication_hook="int8"), [("all_to_all", 260 * 66), ("all_gather", 260 * 66)]),
        (DDPConfig(communication_hook="topk", topk_ratio=0.5), [("all_gather", 8 * 2 * (8192 + 32 + 32))]),
        # P [64, 4] and Q [256, 4]; the vector and the matrix that would not shrink are sent whole.
        (
            DDPConfig(communication_hook="powersgd", powersgd_rank=4),
            [("all_reduce", 4 * 128), ("all_reduce", 4 * 64 * 4), ("all_reduce", 4 * 256 * 4)],
        ),
    ],
    ids=lambda value: getattr(value, "communication_hook", ""),
)
def test_what_a_bucket_sends(section: DDPConfig, expected: list[tuple[str, int]]) -> None:
    assert bucket_reduction(section, [0, 1, 2], [MATRIX, VECTOR, SMALL], 2).calls == tuple(expected)


def test_a_search_for_unused_parameters_costs_a_bitmap() -> None:
    searching = DDPConfig(find_unused_parameters=True)
    plain, more = ddp_collectives(DDPConfig(), [MATRIX, VECTOR], 2), ddp_collectives(searching, [MATRIX, VECTOR], 2)
    assert more == [*plain, Collective("all_reduce", "dp", 1, 8)]
    with pytest.raises(DtkError, match="are mutually exclusive"):
        DDPConfig(static_graph=True, find_unused_parameters=True).check()
    searching.check()


@given(SHAPES, st.sampled_from([0.01, 25.0]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_reductions_cover_every_gradient_once_and_are_what_is_declared(
    shapes: list[tuple[int, ...]], cap_mb: float, searches: bool
) -> None:
    section = DDPConfig(bucket_cap_mb=cap_mb, find_unused_parameters=searches)
    reductions = section.reductions(shapes, 4)
    assert [i for reduction in reductions for i in reduction.members] == list(range(len(shapes)))
    assert [reduction.members for reduction in reductions].count(()) == searches
    sent = sum(size for reduction in reductions for _, size in reduction.calls)
    assert sent == sum(call.size_bytes for call in ddp_collectives(section, shapes, 4))


def test_without_buckets_there_is_nothing_to_reduce_while_backward_runs() -> None:
    assert SingleConfig().reductions([MATRIX], 1) == []


def test_a_stage_without_replicas_sends_nothing() -> None:
    shapes = ModelShapes([MATRIX], [], [MATRIX])
    assert DDPConfig().declare(shapes, Mesh(pp=2), PrecisionConfig(), 4) == []
    assert DDPConfig().declare(shapes, Mesh(pp=2, dp_replicate=2), PrecisionConfig(), 4) != []


def test_a_model_that_is_cut_is_averaged_unit_by_unit() -> None:
    section, tp = DDPConfig(), Mesh(dp_replicate=2, tp=2)
    assert section.on(Mesh(dp_replicate=2, pp=2, cp=2)) is section, "a stage has plain parameters"
    cut = section.on(tp)
    assert (cut.name, cut.engine, cut.traits.gradients_in) == ("ddp", "fsdp", "units")
    with pytest.raises(DtkError, match=r"strategy.bucket_cap_mb=10.0 is incompatible with parallel.tp and parallel.ep"):
        DDPConfig(bucket_cap_mb=10.0).on(Mesh(dp_replicate=2, dp_shard=2, tp=2, ep=2))
    assert getattr(Zero1Config().on(tp), "gathers_once", False), "zero1 keeps whole parameters within a step"
    assert Zero1Config().on(Mesh(pp=2)).engine == "fsdp"


@pytest.mark.parametrize(
    ("hook", "feedback", "remembers"),
    [
        ("none", True, False),
        ("fp16", True, False),
        ("topk", True, True),
        ("topk", False, False),
        ("powersgd", True, True),
    ],
)
def test_an_error_is_kept_only_where_one_is_fed_back(hook: str, feedback: bool, remembers: bool) -> None:
    section = DDPConfig(communication_hook=hook, error_feedback=feedback)  # type: ignore[arg-type]
    assert section.remembers_error == remembers
