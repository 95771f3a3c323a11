"""Shapes into units, and how many elements travel when rows are padded to the ranks."""

from math import prod

from hypothesis import given, settings, strategies as st

from dtk.config.schema import PrecisionConfig
from dtk.sharding.declared import ModelShapes, reduced_item_bytes, shard_elements

SHAPES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), max_size=5)


@given(SHAPES, st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_padding_makes_rows_divide_and_adds_less_than_one_round(shapes: list[tuple[int, ...]], shards: int) -> None:
    padded, exact = shards * shard_elements(shapes, shards), sum(map(prod, shapes))
    assert padded >= exact
    assert padded - exact <= sum((shards - 1) * prod(shape[1:]) for shape in shapes)
    assert shard_elements(shapes, 1) == exact


@given(st.lists(SHAPES, max_size=6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_units_are_consecutive_blocks_and_lose_none(blocks: list[list[tuple[int, ...]]], size: int) -> None:
    model = ModelShapes([shape for block in blocks for shape in block], blocks, [(2, 2)])
    units = model.units(size)
    assert [shape for unit in units for shape in unit] == list(model.parameters)
    assert len(units) == -(-len(blocks) // size) and model.root(size) == [(2, 2)]
    assert model.units(0) == [] and model.root(0) == model.parameters, "the whole model is one unit"


def test_gradients_are_reduced_in_their_own_type_only_where_parameters_are_cast() -> None:
    kinds = (("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))
    precisions = [PrecisionConfig(compute_dtype=compute, reduce_dtype=reduce) for compute, reduce in kinds]  # type: ignore[arg-type]
    assert list(map(reduced_item_bytes, precisions)) == [4, 4, 2]
