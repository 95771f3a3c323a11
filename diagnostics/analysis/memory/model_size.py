"""The size of a model and the distribution of its states over ranks, from the configuration and the summary.

Sources: Rajbhandari et al. 2020 (ZeRO) for states; parameters of GPT-2 and Llama counted from their layers.
"""

from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.contract.strategy_traits import UNKNOWN, StrategyTraits
from diagnostics.evidence.model import MOST_BYTES, MOST_RANKS, Evidence, RunEvidence, integer
from diagnostics.evidence.trace.model import DTYPE_BYTES

FROM_UNITS = "gathered_units"
"""Value of `ModelSize.source` if the size is known only from the sharded units."""


class States(Struct, frozen=True):
    """Bytes of model states on one rank, excluding gathered parameters."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Parameters, gradients and optimizer states together, in bytes."""
        return self.parameters + self.gradients + self.optimizer


class ModelSize(Struct, frozen=True):
    """Sizes of the whole model. A field is None if unknown."""

    world_size: int | None
    strategy: str
    """`strategy.name` of a dtk run; empty for other jobs."""
    parameter_bytes: int | None = None
    """Size of all parameters as stored."""
    gather_bytes: int | None = None
    """Size of all parameters in the dtype in which they are gathered."""
    optimizer_bytes: int | None = None
    """Size of all optimizer states."""
    source: str = ""
    """Origin of `parameter_bytes`."""
    shards: int | None = None
    """Number of ranks that share one copy of the parameters; 1 if each rank has its own."""
    replicas: int = 1
    """Number of copies of a sharded model (HSDP)."""
    block_bytes: int | None = None
    """Size of one transformer block in the gathered dtype."""
    logits_bytes: int | None = None
    """Size of the logits of one micro-batch on one rank, in float32."""
    traits: StrategyTraits = UNKNOWN
    """Traits of the strategy; `UNKNOWN` for jobs other than dtk's."""

    def states(self, world_size: int | None = None) -> States | None:
        """Return one rank's model states in a job of `world_size` ranks (default: its own); None if unknown."""
        ranks = world_size or self.world_size
        if self.parameter_bytes is None or self.optimizer_bytes is None or not ranks or self.shards is None:
            return None
        size, optimizer = self.parameter_bytes, self.optimizer_bytes
        if self.shards > 1:
            shards = max(1, ranks // self.replicas)
            return States(size // shards, size // shards, optimizer // shards)
        return States(size, size, optimizer // ranks if self.traits.sharded == {"optimizer_state"} else optimizer)

    def with_units(self, gathered_bytes: int, optimizer: str, ranks: int) -> "ModelSize":
        """Return a copy with the sizes that gathered units show, if no other source describes a sharded model."""
        if self.gather_bytes is not None or gathered_bytes <= 0:
            return self
        return replace(
            self,
            parameter_bytes=gathered_bytes,
            gather_bytes=gathered_bytes,
            optimizer_bytes=2 * gathered_bytes if optimizer == "adamw" else None,
            source=FROM_UNITS,
            shards=self.shards or ranks,
            world_size=self.world_size or ranks,
        )


def read(evidence: Evidence) -> ModelSize:
    """Return the sizes known from the run's records."""
    run = evidence.run
    if run is None:
        return ModelSize(evidence.world_size, "")
    world_size = evidence.world_size or integer(_figure(run, "world_size"), 1, MOST_RANKS + 1)
    traits = evidence.traits
    parts = prod(_count(run.get(f"parallel.{dimension}")) or 1 for dimension in ("tp", "pp"))
    shards, replicas = _shards(run, traits, world_size, parts)
    size = ModelSize(world_size, traits.name, shards=shards, replicas=replicas, traits=traits)
    count, source = _parameters(run)
    if count is None:
        return size
    count //= parts
    item = DTYPE_BYTES.get(str(run.get("precision.compute_dtype", "float32")), 4)
    item = item if traits.shards_parameters else 4
    layers, width = _count(run.get("model.layers")), _count(run.get("model.width"))
    block = 12 * width * width + 13 * width if layers and width and run.get("model.architecture") == "gpt" else None
    states = {"adamw": 2, "sgd": 1 if run.get("optimizer.momentum") else 0}.get(str(run.get("optimizer.name", "")))
    vocab, micro = _count(run.get("model.vocab_size")), _count(run.get("train.micro_batch_size"))
    length = _count(run.get("data.sequence_length"))
    logits = vocab * micro * length // _parts_of_sequences(run) if vocab and micro and length else None
    return replace(
        size,
        parameter_bytes=4 * count,
        gather_bytes=item * count,
        optimizer_bytes=None if states is None else states * 4 * count,
        source=source,
        block_bytes=None if block is None else block * item,
        logits_bytes=None if logits is None else 4 * logits,
    )


def _parameters(run: RunEvidence) -> tuple[int | None, str]:
    counted = _count(_figure(run, "parameters"))
    if counted:
        return counted, "summary.json"
    kind = run.get("model.architecture")
    names = ("layers", "width", "vocab_size", "context_length", "heads", "kv_heads", "ffn_width")
    layers, width, vocab, context, heads, kv_heads, ffn = (_count(run.get(f"model.{name}")) for name in names)
    if kind == "gpt" and layers and width and vocab and context:
        return 12 * layers * width**2 + 13 * layers * width + (vocab + context + 2) * width, "the configuration"
    if kind == "llama" and layers and width and vocab and heads and kv_heads and ffn:
        attention = 2 * width * width + 2 * width * (width // heads) * kv_heads
        embeddings = vocab * width * (1 if run.get("model.tie_weights") else 2)
        return layers * (attention + 3 * width * ffn + 2 * width) + embeddings + width, "the configuration"
    return None, ""


def _shards(run: RunEvidence, traits: StrategyTraits, world_size: int | None, parts: int) -> tuple[int | None, int]:
    """Return (ranks per shard group, shard groups); ranks along cp are sharded over as data-parallel ranks are."""
    if not traits.shards_parameters:
        return (1 if traits.is_known else None), 1
    if not world_size:
        return world_size, 1
    copies = 1
    if traits.replicated_over is not None:
        replicas, shards = _count(run.get("strategy.dp_replicate")), _count(run.get("strategy.dp_shard"))
        copies = replicas or (world_size // (shards * parts * _parts_of_sequences(run)) if shards else 1)
    replicas = max(copies, 1) * parts
    return max(1, world_size // replicas), replicas


def _parts_of_sequences(run: RunEvidence) -> int:
    return _count(run.get("parallel.cp")) or 1


def _figure(run: RunEvidence, name: str) -> Any:
    figures = run.summary.get("figures")
    return figures.get(name) if isinstance(figures, dict) else None


def _count(value: object) -> int | None:
    return integer(value, 1, MOST_BYTES)
