"""dtk's transformers on a tape: sizes between the parts, every parameter used, nothing left when all is walked back."""

import dataclasses
from typing import Any

import pytest

from dtk.config.schema import MoEConfig, ParallelConfig
from dtk.plan.formulas.shape import cut, model_shape
from dtk.plan.formulas.tape import Ledger, Tape
from dtk.plan.formulas.transformer import Model
from tests.unit.plan.closed_form_jobs import ENCODER, LLAMA, TINY

BATCH, SEQUENCE = 2, 16
MODELS = {
    "gpt": dataclasses.replace(TINY, layers=1),
    "dropout": dataclasses.replace(TINY, layers=1, dropout=0.1),
    "llama": dataclasses.replace(LLAMA, layers=1),
    "tied": dataclasses.replace(LLAMA, layers=1, tie_weights=True),
    "encoder": dataclasses.replace(ENCODER, layers=1),
    "moe": MoEConfig(name="moe", layers=1, width=64, ffn_width=96, expert_width=32, shared_experts=1),
}


def model(name: str, tp: int = 1, sequence_parallel: bool = True, **values: Any) -> Model:
    shape = cut(model_shape(MODELS[name]), tp)
    sizes = {"batch": BATCH, "sequence": SEQUENCE, "stream_bytes": 4, "compute_bytes": 4, "on_cuda": False}
    return Model(
        shape,
        Tape(Ledger()),
        parallel=ParallelConfig(tp=tp, sequence_parallel=sequence_parallel),
        **{**sizes, **values},
    )


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("on_cuda", [False, True])
@pytest.mark.parametrize("compute_bytes", [4, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient_of_its_size_and_nothing_is_left(
    name: str, compute_bytes: int, on_cuda: bool, tp: int
) -> None:
    result = model(name, tp, compute_bytes=compute_bytes, on_cuda=on_cuda)
    ledger = result.tape.ledger
    x = result.embed()
    out = result.block(x, "blocks.0.")
    x.drop()
    loss = result.cross_entropy(result.head(out))
    result.end_autocast()
    result.tape.seed(loss, ledger.allocate("logits", loss.size_bytes))
    loss.drop()
    gradients: dict[str, int] = {}

    def listener(parameter: str, buffer: Any) -> None:
        assert parameter not in gradients, "one gradient each, also of what is used twice"
        gradients[parameter] = buffer.size_bytes
        buffer.drop()

    result.tape.backward(listener)
    sizes = {parameter: 4 * size for parameter, size in _elements(result).items()}
    assert gradients == sizes
    assert ledger.total_bytes == 0 and not result.tape.gradients


def _elements(model: Model) -> dict[str, int]:
    shape = model.shape
    named = [*shape.root, *((f"blocks.0.{name}", size) for name, size in shape.block)]
    return {name: size[0] * (size[1] if len(size) > 1 else 1) for name, size in named}


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_logits_are_one_per_token_and_word(name: str) -> None:
    result = model(name)
    x = result.embed()
    assert x.size_bytes == 4 * BATCH * SEQUENCE * MODELS[name].width
    out = result.block(x, "blocks.0.")
    assert out.size_bytes == x.size_bytes
    assert result.head(out).size_bytes == 4 * BATCH * SEQUENCE * MODELS[name].vocab_size


def test_an_encoder_answers_once_per_sample() -> None:
    result = model("encoder")
    assert result.head(result.embed()).size_bytes == 4 * BATCH * ENCODER.classes


def test_a_rank_of_tp_keeps_less() -> None:
    def block_bytes(tp: int, **values: Any) -> int:
        result = model("gpt", tp, **values)
        x = result.embed()
        before = result.tape.ledger.total_bytes
        result.block(x, "blocks.0.").drop()
        return result.tape.ledger.total_bytes - before

    whole, cut_stream, cut_sequence = block_bytes(1), block_bytes(4, sequence_parallel=False), block_bytes(4)
    assert cut_stream < 0.6 * whole
    assert cut_sequence < cut_stream
