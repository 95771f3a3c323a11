"""Seconds of compute: of each block, of the output projection, of the optimizer.

A kernel is bound by arithmetic or by memory (roofline, Williams, Waterman & Patterson 2009): matrix products count by
their FLOPs, all other kernels by the bytes that they read and write once. Independent of strategy and communication.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from dtk.config.schema import Config, CustomModelConfig, EncoderConfig, LlamaConfig, MoEConfig, SGDConfig
from dtk.models.declared import training_flops_per_token
from dtk.plan.formulas.shape import cut, elements, model_shape
from dtk.plan.formulas.walk import stream_item_bytes
from dtk.plan.timing.hardware import Hardware
from dtk.sharding.declared import ITEM_BYTES, Shape


@dataclass(frozen=True, slots=True)
class Layout:
    """Parameter shapes of a model on a rank of `tp`, in order, and the FLOPs of its parts before sharding."""

    before: tuple[Shape, ...]
    """Shapes of the embeddings."""
    blocks: tuple[tuple[Shape, ...], ...]
    after: tuple[Shape, ...]
    block_flops: float
    """Training FLOPs per token of one block, averaged over all blocks."""
    rest_flops: float
    """Training FLOPs per token outside of blocks: the output projection."""
    experts: tuple[Shape, ...] = ()
    """Shapes of a block's experts on one rank of `ep`, which are in none of `blocks`."""
    dense: int = 0
    """Number of leading blocks that have no experts."""

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of all parameters in the order of `model.parameters()`."""
        return [*self.before, *(shape for block in self.blocks for shape in block), *self.after]

    @property
    def flops_per_token(self) -> int:
        """FLOPs per token of the whole model, as MFU counts them."""
        return round(len(self.blocks) * self.block_flops + self.rest_flops)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of one micro-batch on one rank."""

    block_forward: float
    block_backward: float
    """Backward of a block, without recomputation."""
    block_recompute: float
    head_forward: float
    head_backward: float
    """Backward of the output projection and loss."""


def layout(config: Config) -> Layout:
    """Return the layout of the configured model; only a custom one is built, with torch; DtkError if that fails."""
    model, length = config.model, config.data.sequence_length
    if isinstance(model, CustomModelConfig):
        return _custom_layout(config)
    whole = model_shape(model)
    shape = cut(model_shape(model, config.parallel.ep), config.parallel.tp)
    # Elements outside of blocks by which each token is multiplied: not lookup tables, but a tied one is the output
    # projection; an encoder's head runs once per sample. A test compares them with the models' own count.
    multiplied = sum(prod(size) for name, size in whole.after if name.startswith("final_norm"))
    if not isinstance(model, EncoderConfig):
        root = dict(whole.root)
        multiplied += prod(root.get("head.weight", root["token_embedding.weight"]))
    inside = whole.parameters - elements(whole.root) - getattr(model, "idle_parameters", 0)
    block_flops = training_flops_per_token(inside, whole.layers, model.width, length) / whole.layers
    rest_flops = training_flops_per_token(multiplied, 0, model.width, length)
    kinds = shape.before, shape.dense_block, shape.block, shape.after, shape.experts
    before, dense_block, block, after, experts = (tuple(size for _, size in part) for part in kinds)
    blocks = (dense_block,) * shape.dense + (block,) * (shape.layers - shape.dense)
    return Layout(before, blocks, after, block_flops, rest_flops, experts, shape.dense)


def _custom_layout(config: Config) -> Layout:
    """Return the layout of a custom model: blocks divide its declared FLOPs, else 6 per parameter, by size."""
    from dtk.models.build import build_on_meta
    from dtk.parallel.blocks import blocks_of

    model: Any = build_on_meta(config.model, config.allow_targets)
    blocks = [list(block.parameters()) for block in blocks_of(model)]
    inside = {id(parameter) for block in blocks for parameter in block}
    parameters = list(model.parameters())
    rest = [parameter for parameter in parameters if id(parameter) not in inside]
    first = next((i for i, parameter in enumerate(parameters) if id(parameter) in inside), len(parameters))
    total = sum(parameter.numel() for parameter in parameters)
    declared = getattr(model, "flops_per_token", None)
    flops = float(declared(config.data.sequence_length)) if declared else 6.0 * total
    share = sum(parameter.numel() for block in blocks for parameter in block) / max(total, 1)
    return Layout(
        tuple(tuple(parameter.shape) for parameter in rest[:first]),
        tuple(tuple(tuple(parameter.shape) for parameter in block) for block in blocks),
        tuple(tuple(parameter.shape) for parameter in rest[first:]),
        flops * share / max(len(blocks), 1),
        flops * (1 - share),
    )


def micro_batch_seconds(config: Config, model: Layout, hardware: Hardware) -> Seconds:
    """Return the times of a block and of the head; DtkError if the hardware has no figure for the precision."""
    precision, samples = config.precision, config.train.micro_batch_size
    rate = hardware.matmul_rate(precision.matmul_dtype)
    tokens = samples * config.data.sequence_length // config.parallel.cp
    item, parts = ITEM_BYTES[precision.compute_dtype], config.parallel.tp
    moved = _streamed_bytes(config, item) / hardware.memory_rate
    block = tokens * (model.block_flops / 3 / rate / parts + moved)
    head = tokens * model.rest_flops / 3 / rate / parts
    encodes = isinstance(config.model, EncoderConfig)
    logits = samples * config.model.classes if encodes else tokens * config.model.vocab_size
    logits_byte_s = logits / hardware.memory_rate / parts  # One byte of each logit read or written.
    cast = (item + 4) * logits_byte_s if item != 4 else 0.0
    # log_softmax reads and writes; its backward reads two and writes one, after the loss wrote zero gradients.
    return Seconds(block, 2 * block, block, head + 8 * logits_byte_s + cast, 2 * head + 16 * logits_byte_s + cast)


def attention_seconds(config: Config, hardware: Hardware) -> float:
    """Return the forward time of a block's attention alone, which `micro_batch_seconds` includes."""
    length, parallel = config.data.sequence_length, config.parallel
    tokens = config.train.micro_batch_size * length // parallel.cp
    flops: float = tokens * training_flops_per_token(0, 1, config.model.width, length) / 3
    return flops / hardware.matmul_rate(config.precision.matmul_dtype) / parallel.tp


def _streamed_bytes(config: Config, item: int) -> float:
    """Return the bytes per token that a block's forward moves outside of matrix products, on a rank of `tp`."""
    # Two norms 4 h, two residual sums 6 h, which only sequence_parallel shards; the heads' contiguous output 2 h, GELU
    # on f: 2 f. Rotary embedding of queries and keys in float32 adds 10 h, SwiGLU needs 5 f.
    model, parallel = config.model, config.parallel
    if isinstance(model, CustomModelConfig):
        return 0.0
    # Dropout of both: 4 h, and two masks of one byte per element.
    outside = 15.0 if getattr(model, "dropout", 0.0) else 10.0
    # Under autocast residual stream and norms stay in float32, and matrix products read a cast copy of each norm.
    wide = stream_item_bytes(config)
    casts = 2 * (wide + item) if wide != item else 0
    stream: float = (outside * wide + casts) * model.width / (parallel.tp if parallel.sequence_parallel else 1)
    llama = isinstance(model, LlamaConfig)
    inner: float = 12.0 * model.width + 5.0 * model.ffn_width if llama else (2.0 + 2 * 4) * model.width
    if isinstance(model, MoEConfig):
        # Tokens are gathered, scattered, weighted and summed: 8 h; `ep` also permutes by expert and back: 4 h.
        rows = model.experts_per_token * (12.0 if parallel.ep > 1 else 8.0) * model.width
        mixed = rows + 5.0 * (model.experts_per_token + model.shared_experts) * model.expert_width
        inner += (1 - model.dense_layers / model.layers) * (mixed - 5.0 * model.ffn_width)
    return stream + item * inner / parallel.tp


def optimizer_seconds(config: Config, owned: int, hardware: Hardware) -> float:
    """Return the time to update `owned` float32 parameters, which is bound by memory bandwidth.

    AdamW reads parameter, gradient, two moments, writes three: 7 x 4 bytes; SGD 5 x 4 with momentum, else 3 x 4.
    """
    streams = 7
    if isinstance(config.optimizer, SGDConfig):
        streams = 5 if config.optimizer.momentum else 3
    return streams * 4 * owned / hardware.memory_rate


def clip_seconds(config: Config, gradients: int, hardware: Hardware) -> tuple[float, float]:
    """Return the seconds of the gradients' norm (a read) and scaling (a read and a write); 0 if neither is needed."""
    if config.train.clip_norm is None and config.precision.initial_loss_scale is None:
        return 0.0, 0.0
    return 4 * gradients / hardware.memory_rate, 8 * gradients / hardware.memory_rate
