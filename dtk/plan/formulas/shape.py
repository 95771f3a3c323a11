"""Parameter shapes of a configured architecture in the model's order, without building it or importing torch."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

from dtk.config.schema import CustomModelConfig, EncoderConfig, GPTConfig, LlamaConfig, MoEConfig
from dtk.dimensions.tp import CUT_ALONG
from dtk.errors import DtkError
from dtk.sharding.declared import ModelShapes, Shape

if TYPE_CHECKING:
    from dtk.models.layers import Role

Named = tuple[tuple[str, Shape], ...]
KnownConfig = GPTConfig | LlamaConfig | EncoderConfig
_COLUMN, ROW, _VOCABULARY = ("qkv", "q", "k", "v", "gate", "up"), ("projection", "down"), ("token_embedding", "head")
"""Layers by their role in `dtk.models.layers`; a test compares the shapes with sharded modules."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Parameter shapes of a transformer: `before`, `layers` times `block`, `after`."""

    config: KnownConfig
    layers: int
    before: Named
    """Parameters of the embeddings."""
    block: Named
    """Parameters of one block; names are relative to the block."""
    after: Named
    """Parameters of the final norm and head; a tied head is in `before`."""
    dense: int = 0
    """Number of leading blocks of a mixture of experts that have a dense MLP: each is a `dense_block`."""
    dense_block: Named = ()
    experts: Named = ()
    """A block's experts on one rank of `ep`, which are held separately; without `ep` they are in `block`."""

    def total(self, count: Callable[[Named], int]) -> int:
        """Return the sum of `count` over the root and all blocks, without `experts`."""
        return count(self.root) + self.dense * count(self.dense_block) + (self.layers - self.dense) * count(self.block)

    @property
    def blocks(self) -> list[Named]:
        """Parameters of each block in order."""
        return [self.dense_block] * self.dense + [self.block] * (self.layers - self.dense)

    @property
    def root(self) -> Named:
        """Parameters that belong to no block."""
        return self.before + self.after

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of all parameters in the order of `model.parameters()`."""
        return [shape for part in (self.before, *self.blocks, self.after) for _, shape in part]

    @property
    def names(self) -> list[str]:
        """Names of all parameters in the order of `shapes`."""
        blocks = [f"blocks.{i}.{name}" for i, block in enumerate(self.blocks) for name, _ in block]
        return [name for name, _ in self.before] + blocks + [name for name, _ in self.after]

    @property
    def declared(self) -> ModelShapes:
        """The shapes in the form that strategies use to declare their collectives."""
        blocks = [[shape for _, shape in block] for block in self.blocks]
        experts = [[shape for _, shape in self.experts]] * (self.layers - self.dense if self.experts else 0)
        return ModelShapes(self.shapes, blocks, [shape for _, shape in self.root], experts)

    @property
    def parameters(self) -> int:
        """Number of elements of all parameters."""
        return self.total(elements) + (self.layers - self.dense) * elements(self.experts)


@functools.lru_cache(maxsize=256)
def cut(shape: ModelShape, tp: int) -> ModelShape:
    """Return the shapes of the shards on one rank of `tp`."""
    if tp == 1:
        return shape

    def part(name: str, whole: Shape) -> Shape:
        along = CUT_ALONG[_role(shape.config, name)].get(name.rpartition(".")[2])
        return whole if along is None else (*whole[:along], whole[along] // tp, *whole[along + 1 :])

    parts = ("before", "block", "after", "dense_block")
    whole: dict[str, Named] = {name: getattr(shape, name) for name in parts}
    return replace(shape, **{key: tuple((name, part(name, size)) for name, size in whole[key]) for key in parts})  # type: ignore[arg-type]


def partial(shape: ModelShape, shards: int) -> list[Shape]:
    """Return the shapes on this rank of parameters whose gradients cover only its part of the sequence under `tp`."""
    names = chain(shape.root, *shape.blocks)
    return [
        (-(-size[0] // shards), *size[1:])
        for name, size in names
        if (role := _role(shape.config, name)) != "whole" and name.rpartition(".")[2] not in CUT_ALONG[role]
    ]


def _role(config: KnownConfig, name: str) -> "Role":
    layer = name.split(".")[-2]
    if layer in _COLUMN:
        return "column"
    if layer in ROW:
        return "row"
    if layer == "experts":
        return "expert"
    if layer in _VOCABULARY:
        return "whole" if layer == "head" and isinstance(config, EncoderConfig) else "vocabulary"
    return "replicated"


def elements(named: Named) -> int:
    """Return the number of elements of these parameters."""
    return sum(prod(shape) for _, shape in named)


@functools.lru_cache(maxsize=256)
def model_shape(config: KnownConfig | CustomModelConfig, ep: int = 1) -> ModelShape:
    """Return the parameter shapes of a model section, whose experts are sharded over `ep` ranks; DtkError if the model
    is custom, so no formula covers its activations.
    """
    if isinstance(config, CustomModelConfig):
        why = "no formula covers what your own model keeps for backward"
        fix = "use the simulated engine, which runs the model itself under fake tensors"
        raise DtkError(f"the closed form does not know model={config.name}", why, fix)
    before: list[tuple[str, Shape]] = [("token_embedding.weight", (config.vocab_size, config.width))]
    if isinstance(config, LlamaConfig):
        after: list[tuple[str, Shape]] = [("final_norm.weight", (config.width,))]
        if not config.tie_weights:
            after.append(("head.weight", (config.vocab_size, config.width)))
        width, narrow = config.width, config.kv_heads * (config.width // config.heads)
        # `dtk.models.llama.LlamaBlock`: no biases, fewer heads for keys and values.
        attention: Named = (
            ("attention_norm.weight", (width,)),
            ("attention.q.weight", (width, width)),
            ("attention.k.weight", (narrow, width)),
            ("attention.v.weight", (narrow, width)),
            ("attention.projection.weight", (width, width)),
            ("mlp_norm.weight", (width,)),
        )
        block = dense_block = attention + _swiglu("mlp", width, config.ffn_width)
        if not isinstance(config, MoEConfig):
            return ModelShape(config, config.layers, tuple(before), block, tuple(after))
        # `dtk.models.moe.MixtureMLP`: the rows of all experts are concatenated in order.
        local, inner = config.experts // ep, config.expert_width
        experts: Named = (
            *(("mlp.experts." + name, (local * inner, width)) for name in ("gate", "up")),
            ("mlp.experts.down", (local * width, inner)),
        )
        shared = _swiglu("mlp.shared", width, config.shared_experts * inner) if config.shared_experts else ()
        block = (*attention, ("mlp.router.weight", (config.experts, width)), *(experts if ep == 1 else ()), *shared)
        mixed = config.dense_layers, dense_block, experts if ep > 1 else ()
        return ModelShape(config, config.layers, tuple(before), block, tuple(after), *mixed)
    before.append(("position_embedding.weight", (config.context_length, config.width)))
    width = config.width
    # `dtk.models.blocks.Block`: 12 width^2 + 13 width elements.
    block = (
        *_with_bias("attention_norm", width),
        *_with_bias("attention.qkv", 3 * width, width),
        *_with_bias("attention.projection", width, width),
        *_with_bias("mlp_norm", width),
        *_with_bias("mlp.up", 4 * width, width),
        *_with_bias("mlp.down", width, 4 * width),
    )
    after = _with_bias("final_norm", width)
    if isinstance(config, EncoderConfig):
        after += _with_bias("head", config.classes, width)
    return ModelShape(config, config.layers, tuple(before), block, tuple(after))


def _swiglu(name: str, width: int, inner: int) -> Named:
    inward = tuple((f"{name}.{layer}.weight", (inner, width)) for layer in ("gate", "up"))
    return (*inward, (f"{name}.down.weight", (width, inner)))


def _with_bias(name: str, *weight: int) -> list[tuple[str, Shape]]:
    return [(f"{name}.weight", weight), (f"{name}.bias", weight[:1])]


def block_of(name: str) -> int | None:
    """Return the number of the block that a parameter belongs to, or None if it belongs to no block."""
    return int(name.split(".", 2)[1]) if name.startswith("blocks.") else None
