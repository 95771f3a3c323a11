"""Construction of a module from the `model` section of the configuration. No other module knows all architectures.

A custom model (`_target_`) is any `torch.nn.Module` whose forward maps token ids [batch, sequence] to logits [batch,
sequence, vocab] or [batch, classes], or to an object that has them as `logits`. It may define the methods of dtk's own
models: `initial(name)` and `flops_per_token(sequence_length)`. Without `initial` it cannot start on the meta device:
each rank builds it whole on the CPU under `torch.manual_seed(seed)`, and the strategy shards it from there.
"""

import torch
from torch import nn

from dtk.config.instantiate import instantiate
from dtk.config.schema import Config, CustomModelConfig, EncoderConfig, GPTConfig, LlamaConfig, MoEConfig
from dtk.errors import DtkError
from dtk.models.encoder import Encoder
from dtk.models.gpt import GPT
from dtk.models.llama import Llama
from dtk.models.moe import MoE
from dtk.parallel.blocks import blocks_of, choose_blocks, describe_blocks

ModelConfig = GPTConfig | LlamaConfig | EncoderConfig | CustomModelConfig


def build_model(config: ModelConfig, allow_targets: list[str]) -> nn.Module:
    """Build the model on the current default device; DtkError if the `_target_` is not allowed, not found or not an
    nn.Module, or does not accept its arguments.
    """
    if isinstance(config, CustomModelConfig):
        model: nn.Module = instantiate(config._target_, config.constructor, allow_targets, nn.Module)
        if config.wrap:
            choose_blocks(model, config.wrap)
        return model
    if isinstance(config, GPTConfig):
        return GPT(config)
    if isinstance(config, LlamaConfig):
        return (MoE if isinstance(config, MoEConfig) else Llama)(config)
    return Encoder(config)


def build_on_meta(config: ModelConfig, allow_targets: list[str]) -> nn.Module:
    """Build the model without memory; DtkError as from `build_model`."""
    with torch.device("meta"):
        return build_model(config, allow_targets)


def check_blocks(config: Config, model: nn.Module) -> None:
    """Reject settings that apply to blocks if the model has none; DtkError for the first such setting."""
    if blocks_of(model):
        return
    every = config.train.activation_checkpoint_every
    units = getattr(config.strategy, "blocks_per_unit", 1)
    for setting, off, used in (
        ("train.compile=true", "train.compile=false", config.train.compile),
        (f"train.activation_checkpoint_every={every}", "train.activation_checkpoint_every=0", every > 0),
        (f"strategy.blocks_per_unit={units}", "strategy.blocks_per_unit=1", units > 1),
    ):
        if used:
            what = f"{setting} works on the blocks of a model, and model={config.model.name} has none"
            why = "no nn.ModuleList or nn.Sequential in it holds several modules of one class"
            raise DtkError(what, why, f"name the class of its blocks (model.wrap=[MyBlock]), or use {off}")


def check_custom(config: Config) -> None:
    """Build a custom model on the meta device if the configuration uses features that only some models support.

    Other errors of the model are left to the ranks, which build it. DtkError without blocks, or if `wrap` matches none.
    """
    needs = config.train.compile or config.train.activation_checkpoint_every or config.model.wrap
    needs = needs or getattr(config.model, "path", None)  # Whether a model of transformers suits its task.
    if not needs and getattr(config.strategy, "blocks_per_unit", 1) < 2:
        return
    if (model := _on_meta(config)) is not None:
        check_blocks(config, model)


def blocks_found(config: Config) -> str:
    """Describe the blocks of a custom model before a rank builds it; empty if it cannot be built on the meta device."""
    return "" if (model := _on_meta(config)) is None else describe_blocks(model)


def _on_meta(config: Config) -> nn.Module | None:
    try:
        return build_on_meta(config.model, config.allow_targets)
    except DtkError:
        raise
    except Exception:
        return None
