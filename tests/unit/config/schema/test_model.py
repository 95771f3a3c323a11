"""Keys of the model: what a section says of itself is what the model that it describes has."""

import torch

from dtk.config.schema.model import CustomModelConfig, MoEConfig
from dtk.models.build import build_model


def test_idle_parameters_are_those_of_the_experts_that_a_token_does_not_pass_through() -> None:
    config = MoEConfig(name="moe", layers=3, dense_layers=1, experts=4, experts_per_token=1, width=32, heads=4)
    with torch.device("meta"):
        sizes = {experts: _parameters(config, experts) for experts in (1, 4)}
    # Beside its own matrices an expert adds a row to the router of each block, through which every token passes.
    routers = (config.layers - config.dense_layers) * (config.experts - 1) * config.width
    assert config.idle_parameters == sizes[4] - sizes[1] - routers


def _parameters(config: MoEConfig, experts: int) -> int:
    keys = {name: getattr(config, name) for name in ("layers", "dense_layers", "experts_per_token", "width", "heads")}
    model = build_model(MoEConfig(name="moe", experts=experts, **keys), [])
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_path_of_weights_is_an_argument_of_a_model_of_ones_own() -> None:
    keys = {"name": "mine", "_target_": "mine.Model", "arguments": {"depth": 2}}
    assert CustomModelConfig(**keys).constructor == {"depth": 2}
    assert CustomModelConfig(path="w", **keys).constructor == {"path": "w", "depth": 2}
    assert CustomModelConfig(path="w", **{**keys, "arguments": {"path": "x"}}).constructor == {"path": "x"}
