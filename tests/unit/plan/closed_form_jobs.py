"""Configurations for the tests of the closed form, put together without composing files."""

from typing import Any

from dtk.config.schema import (
    AdamWConfig,
    CheckpointConfig,
    Config,
    ConstantSchedule,
    EncoderConfig,
    GPTConfig,
    LauncherConfig,
    LlamaConfig,
    NCCLConfig,
    NoTracker,
    PrecisionConfig,
    RecordConfig,
    SyntheticData,
    TrainConfig,
)
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from dtk.strategies.zero2 import Zero2Config

STRATEGIES: dict[str, tuple[int, Any]] = {
    "single": (1, SingleConfig()),
    "ddp": (4, DDPConfig()),
    "zero1": (4, Zero1Config()),
    "zero2": (4, Zero2Config()),
    "fsdp": (4, FSDPConfig()),
    "hsdp": (4, HSDPConfig(dp_replicate=2)),
}
"""Name -> ranks and section."""


def gpt(layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 50257, context: int = 1024) -> GPTConfig:
    """GPT-2 124M unless told otherwise."""
    return GPTConfig(name="gpt", layers=layers, width=width, heads=heads, vocab_size=vocab, context_length=context)


TINY = gpt(layers=4, width=128, heads=4, vocab=256, context=256)
LLAMA = LlamaConfig(name="llama", layers=4, heads=8, kv_heads=4, width=128, ffn_width=344, vocab_size=512)
ENCODER = EncoderConfig(name="encoder", layers=4, heads=4, width=128, classes=8)


def job(
    ranks: int,
    strategy: Any,
    model: Any = TINY,
    sequence: int = 64,
    micro: int = 2,
    rounds: int = 1,
    precision: str = "float32",
    device: Any = "cpu",
    optimizer: Any = None,
    clip: float | None = 1.0,
    recompute: int = 0,
) -> Config:
    """A job whose batch divides."""
    return Config(
        model=model,
        data=SyntheticData(sequence_length=sequence),
        strategy=strategy,
        precision=PrecisionConfig(compute_dtype=precision),  # type: ignore[arg-type]
        optimizer=optimizer or AdamWConfig(),
        schedule=ConstantSchedule(),
        train=TrainConfig(
            global_batch_size=micro * rounds * ranks,
            micro_batch_size=micro,
            clip_norm=clip,
            activation_checkpoint_every=recompute,
        ),
        checkpoint=CheckpointConfig(),
        record=RecordConfig(),
        tracker=NoTracker(),
        launcher=LauncherConfig(device=device),
        nccl=NCCLConfig(),
    )
