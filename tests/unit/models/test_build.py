"""build_model: the right class for each section, and one line for sizes that do not fit together."""

from typing import Any

import pytest
import torch

from dtk.config.schema import CustomModelConfig, EncoderConfig, GPTConfig, LlamaConfig
from dtk.errors import DtkError
from dtk.models.build import build_model
from dtk.models.encoder import Encoder
from dtk.models.gpt import GPT
from dtk.models.llama import Llama


@pytest.mark.parametrize(
    ("config", "kind"),
    [(GPTConfig(name="a"), GPT), (LlamaConfig(name="b"), Llama), (EncoderConfig(name="c"), Encoder)],
)
def test_each_architecture_on_meta_offers_the_contract(config: Any, kind: type) -> None:
    with torch.device("meta"):
        model: Any = build_model(config, [])
    assert type(model) is kind
    assert len(model.blocks) == config.layers
    assert model.flops_per_token(64) > 0
    assert {model.initial(name).kind for name, _ in model.named_parameters()} <= {"normal", "zeros", "ones"}


def test_custom_model_is_built_from_its_target() -> None:
    config = CustomModelConfig(
        name="mine", _target_="torch.nn.Embedding", arguments={"num_embeddings": 8, "embedding_dim": 8}
    )
    model = build_model(config, ["torch.nn.*"])
    assert isinstance(model, torch.nn.Embedding)
    assert model.weight.shape == (8, 8)


def test_custom_target_that_is_no_module_is_refused() -> None:
    config = CustomModelConfig(name="mine", _target_="collections.OrderedDict")
    with pytest.raises(DtkError, match=r"is not a torch\.nn\.modules\.module\.Module"):
        build_model(config, ["collections.*"])
