"""What each layer keeps for backward, in bytes worked by hand for one sample of 8 tokens, width 16."""

import dataclasses
from typing import Any

import pytest

from dtk.config.schema import ParallelConfig
from dtk.plan.formulas.activations import FLOAT_BYTES, PER_TARGET_BYTES, Layers, plain
from dtk.plan.formulas.shape import cut, model_shape
from dtk.plan.formulas.tape import Ledger, Tape, Value
from tests.unit.plan.closed_form_jobs import LLAMA, gpt

TOKENS, WIDTH, VOCABULARY, HEADS = 8, 16, 64, 4
GPT = gpt(layers=1, width=WIDTH, heads=HEADS, vocab=VOCABULARY, context=TOKENS)
WHOLE = ParallelConfig()
STREAM = TOKENS * WIDTH * 4
"""Bytes of the residual stream in float32."""


def layers(model: Any = GPT, parallel: ParallelConfig = WHOLE, **values: Any) -> Layers:
    sizes = {"batch": 1, "sequence": TOKENS, "stream_bytes": 4, "compute_bytes": 4, "on_cuda": False}
    return Layers(cut(model_shape(model), parallel.tp), Tape(Ledger()), parallel=parallel, **{**sizes, **values})


def stream(layers: Layers, size: int = STREAM) -> Value:
    return Value(layers.tape.ledger.allocate("activations", size), size)


def kept(layers: Layers, *results: Value) -> int:
    """Bytes that are left once the code has let go of all values."""
    for value in results:
        value.drop()
    return layers.tape.ledger.total_bytes


def test_a_layer_norm_keeps_its_input_and_two_numbers_a_row() -> None:
    result = layers()
    x = stream(result)
    assert kept(result, result.norm(x, "blocks.0.attention_norm"), x) == STREAM + 2 * 4 * TOKENS


def test_an_rms_norm_on_the_cpu_keeps_the_normalised_input_as_well() -> None:
    llama = dataclasses.replace(LLAMA, width=WIDTH, heads=HEADS, kv_heads=2, ffn_width=32, layers=1)
    for on_cuda, normalised in ((True, 0), (False, STREAM)):
        result = layers(llama, on_cuda=on_cuda)
        x = stream(result)
        assert kept(result, result.norm(x, "blocks.0.attention_norm"), x) == STREAM + 4 * TOKENS + normalised


def test_a_matrix_product_keeps_its_input() -> None:
    result = layers()
    x = stream(result)
    y = result.linear(x, "blocks.0.mlp.up", 4 * WIDTH, TOKENS)
    assert y.size_bytes == 4 * STREAM
    assert kept(result, y, x) == STREAM


def test_under_autocast_it_keeps_16_bit_copies_of_input_and_weight() -> None:
    result = layers(compute_bytes=2)
    x = stream(result)
    y = result.linear(x, "blocks.0.mlp.up", 4 * WIDTH, TOKENS)
    assert y.size_bytes == 2 * STREAM
    weight = 2 * 4 * WIDTH * WIDTH
    assert len(result.cast_weights) == 1 and all(copy.holders > 1 for copy in result.cast_weights.values())
    assert kept(result, y, x) == STREAM // 2 + weight
    result.end_autocast()
    assert result.tape.ledger.total_bytes == STREAM // 2 + weight, "backward still holds the copy"
    assert not result.cast_weights


def test_a_weight_is_cast_once_in_a_context() -> None:
    result = layers(compute_bytes=2)
    values = [result.linear(x := stream(result), "token_embedding", VOCABULARY, TOKENS), x]
    once = result.tape.ledger.total_bytes
    values += [result.linear(x := stream(result), "token_embedding", VOCABULARY, TOKENS), x]
    weight = 2 * VOCABULARY * WIDTH
    assert result.tape.ledger.total_bytes == 2 * once - weight
    assert list(result.cast_weights) == ["token_embedding.weight"]


@pytest.mark.parametrize(("on_cuda", "dropout"), [(True, 0.1), (False, 0.0), (False, 0.1)])
def test_attention_keeps_the_matrix_only_with_dropout_on_the_cpu(on_cuda: bool, dropout: float) -> None:
    result = layers(on_cuda=on_cuda)
    qkv = stream(result, 3 * STREAM)
    y = result.attention((qkv,), (3 * STREAM,), dropout)
    rows = TOKENS * HEADS
    matrix = 3 * rows * TOKENS * 4 if dropout and not on_cuda else rows * FLOAT_BYTES
    assert kept(result, y, qkv) == 3 * STREAM + STREAM + matrix


def test_dropout_keeps_a_mask_of_bytes_on_cuda_and_of_its_type_on_the_cpu() -> None:
    for on_cuda, mask in ((True, TOKENS * WIDTH), (False, STREAM)):
        result = layers(on_cuda=on_cuda)
        assert kept(result, result.dropout(stream(result), 0.1)) == mask
    result = layers()
    x = stream(result)
    assert result.dropout(x, 0.0) is x


def test_a_residual_sum_keeps_nothing() -> None:
    result = layers()
    x, branch = stream(result), stream(result)
    assert kept(result, result.add(x, branch), x) == 0


def test_the_loss_keeps_its_log_probabilities_in_float32() -> None:
    whole = TOKENS * VOCABULARY * 4
    result = layers()
    assert kept(result, result.cross_entropy(stream(result, whole))) == whole
    result = layers(compute_bytes=2)
    loss = result.cross_entropy(stream(result, whole // 2))
    assert loss.size_bytes == FLOAT_BYTES
    assert kept(result, loss) == whole, "the logits in 16 bits are let go of"


def test_a_part_of_the_vocabulary_also_keeps_which_targets_are_in_it() -> None:
    part = TOKENS * VOCABULARY // 2 * 4
    result = layers(parallel=ParallelConfig(tp=2, loss_parallel=True))
    assert kept(result, result.cross_entropy(stream(result, part))) == part + PER_TARGET_BYTES * TOKENS
    whole = layers(parallel=ParallelConfig(tp=2, loss_parallel=False))
    assert kept(whole, whole.cross_entropy(stream(whole, part))) == 2 * part, "gathered before the loss"


def test_a_cut_layer_takes_the_whole_sequence_and_gives_its_part_back() -> None:
    result = layers(parallel=ParallelConfig(tp=2, sequence_parallel=True))
    x = stream(result, STREAM // 2)
    whole = result.enter(x)
    assert whole.size_bytes == STREAM
    assert result.leave(whole).size_bytes == STREAM // 2
    apart = layers(parallel=ParallelConfig(tp=2, sequence_parallel=False))
    y = stream(apart)
    assert apart.enter(y).size_bytes == apart.leave(stream(apart)).size_bytes == STREAM


def test_the_bias_of_a_row_cut_layer_is_added_to_the_sum() -> None:
    result = layers(parallel=ParallelConfig(tp=2, sequence_parallel=True))
    x = stream(result, STREAM // 2)
    y = result.row(x, "blocks.0.attention.projection")
    assert y.size_bytes == STREAM // 2
    assert [name for node in result.tape.nodes for name, _ in node.parameters] == [
        "blocks.0.attention.projection.weight",
        "blocks.0.attention.projection.bias",
    ]


def test_names_without_the_number_of_their_block() -> None:
    assert plain("blocks.11.mlp.up.weight") == "mlp.up.weight"
    assert plain("head.weight") == "head.weight"
