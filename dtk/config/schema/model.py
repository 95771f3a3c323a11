"""Keys of the `model` section: one dataclass per architecture."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class GPTConfig:
    """GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks, tied output weights."""

    name: str
    architecture: Literal["gpt"] = "gpt"
    vocab_size: int = 50257
    context_length: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    dropout: float = 0.0
    pretrained: str | None = None


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
    """Llama with mixture-of-experts feed-forward networks (Shazeer et al. 2017, Jiang et al. 2024)."""

    architecture: Literal["moe"] = "moe"  # type: ignore[assignment]
    experts: int = 8
    experts_per_token: int = 2
    expert_width: int = 688
    shared_experts: int = 0
    dense_layers: int = 0
    capacity_factor: float | None = None
    balance_loss: float = 0.01
    z_loss: float = 0.001

    @property
    def idle_parameters(self) -> int:
        """Number of parameters of the experts that a token is not routed to."""
        idle = (self.layers - self.dense_layers) * (self.experts - self.experts_per_token)
        return idle * 3 * self.width * self.expert_width


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


def head_blocks(model: Any, sequence_length: int) -> float:
    """Return the cost of the output projection in blocks, by the FLOPs of matrix products per token."""
    if not isinstance(model, GPTConfig | LlamaConfig):
        return 0.0
    narrow, inner = model.width, 8 * model.width
    if isinstance(model, LlamaConfig):
        narrow, inner = model.width * model.kv_heads // model.heads, 3 * model.ffn_width
    if isinstance(model, MoEConfig):
        inner = 3 * (model.experts_per_token + model.shared_experts) * model.expert_width
    return model.vocab_size / (2 * model.width + 2 * narrow + inner + 2 * sequence_length)


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomModelConfig:
    """A custom `torch.nn.Module`, named by import path; its forward maps token ids to logits."""

    name: str
    _target_: str
    architecture: Literal["custom"] = "custom"
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    wrap: list[str] = field(default_factory=list, hash=False)
    path: str | None = None
    context_length: int = 1024
    vocab_size: int = 50257

    @property
    def constructor(self) -> dict[str, Any]:
        """Return all arguments of the class."""
        return self.arguments if self.path is None else {"path": self.path, **self.arguments}
