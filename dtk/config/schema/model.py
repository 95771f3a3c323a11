"""Keys of the `model` section: one dataclass per architecture."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class GPTConfig:
    """GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks, tied output weights."""

    name: str
    """Label of this model in run ids and reports."""
    architecture: Literal["gpt"] = "gpt"
    vocab_size: int = 50257
    context_length: int = 1024
    """Longest sequence in tokens."""
    layers: int = 12
    heads: int = 12
    width: int = 768
    """Size of the residual stream."""
    dropout: float = 0.0
    pretrained: str | None = None
    """Local Hugging Face folder with `model.safetensors` to start from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaConfig:
    """Llama (Touvron et al. 2023): rotary positions, RMSNorm, SwiGLU, grouped-query attention."""

    name: str
    architecture: Literal["llama"] = "llama"
    vocab_size: int = 512
    context_length: int = 1024
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    width: int = 256
    ffn_width: int = 688
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_weights: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MoEConfig(LlamaConfig):
    """Llama whose feed-forward networks are a mixture of experts (Shazeer et al. 2017, Jiang et al. 2024)."""

    architecture: Literal["moe"] = "moe"  # type: ignore[assignment]
    experts: int = 8
    """Feed-forward networks of a block, of which a router chooses some for each token."""
    experts_per_token: int = 2
    expert_width: int = 688
    """Inner width of an expert."""
    shared_experts: int = 0
    """Experts that every token passes through beside those that are chosen."""
    dense_layers: int = 0
    """First blocks that have one network of `ffn_width` in place of experts."""
    capacity_factor: float | None = None
    """Tokens of a micro-batch that an expert takes, as a multiple of an even share, others are dropped; null = all."""
    balance_loss: float = 0.01
    """Weight of the loss that evens out how often experts are chosen."""
    z_loss: float = 0.001
    """Weight of the loss that keeps the router's logits small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """BERT-like bidirectional encoder (Devlin et al. 2018) with a classification head."""

    name: str
    architecture: Literal["encoder"] = "encoder"
    vocab_size: int = 512
    context_length: int = 512
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0
    classes: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomModelConfig:
    """Your own `torch.nn.Module`, named by import path; its forward maps token ids to logits."""

    name: str
    _target_: str
    """Import path of the class, for example `my_package.MyModel`; allow it by `allow_targets`."""
    architecture: Literal["custom"] = "custom"
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the constructor, checked against its signature."""
    wrap: list[str] = field(default_factory=list)
    """Blocks of the model, by class name or by a pattern of qualified names (`encoder.layers.*`): the units of
    sharding, recomputation and compile. Empty = `blocks`, or the modules of the class of the largest list."""
    path: str | None = None
    """Local folder of a transformers model (`model=hf`): an argument of the class too."""
    context_length: int = 1024
    vocab_size: int = 50257

    @property
    def constructor(self) -> dict[str, Any]:
        """Return all arguments of the class."""
        return self.arguments if self.path is None else {"path": self.path, **self.arguments}
