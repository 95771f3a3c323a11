"""Types of the configuration: one frozen dataclass per section, the meaning of each key below it.

Values live in `conf/`; this module says which keys exist and what they mean. It imports neither
torch nor hydra, so `dtk --help` and the docs can read it. Sections with several kinds (model,
data, strategy, ...) are told apart by `name` (models by `architecture`): see `KINDS`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal


# ---- model ---------------------------------------------------------------------------------
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
    context_length: int = 1024
    vocab_size: int = 50257


# ---- data ----------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What every data source has."""

    name: str
    sequence_length: int = 128
    """Tokens per sample (shape of one sample: [sequence_length])."""
    validation_fraction: float = 0.05
    """Share held out for evaluation; never seen in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StdlibData(DataConfig):
    """The Python standard library's own source: real text that is there on every machine."""

    name: Literal["stdlib"] = "stdlib"
    tokenizer: str = "byte"
    """`byte`, `gpt2` (tiktoken) or the path of a `tokenizer.json`."""
    max_bytes: int | None = None
    """Read at most this much of the corpus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextData(DataConfig):
    """Your own text: one file, or a folder that is searched for text files."""

    name: Literal["text"] = "text"
    path: str
    tokenizer: str = "byte"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensData(DataConfig):
    """A flat binary file of token ids, memory-mapped."""

    name: Literal["tokens"] = "tokens"
    path: str
    dtype: Literal["uint16", "uint32"] = "uint16"
    vocab_size: int = 50257


@dataclass(frozen=True, kw_only=True, slots=True)
class HFData(DataConfig):
    """A Hugging Face dataset (extra `hf`): a local folder or file, or a hub name."""

    name: Literal["hf"] = "hf"
    path: str
    split: str = "train"
    text_field: str = "text"
    tokenizer: str = "byte"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationData(DataConfig):
    """Labelled text. Without a path: which standard-library package does this source come from?"""

    name: Literal["classification"] = "classification"
    path: str | None = None
    """A .csv, .tsv or .jsonl file with the columns `text` and `label`."""
    tokenizer: str = "byte"
    samples_per_class: int = 500
    """Of the embedded task: windows taken from each of its packages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticData(DataConfig):
    """Random tokens. For measuring speed and memory only: the loss means nothing."""

    name: Literal["synthetic"] = "synthetic"
    vocab_size: int = 256
    samples: int = 100_000


# ---- strategy ------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, slots=True)
class SingleConfig:
    """One process, one device: the reference that the others are compared with."""

    name: Literal["single"] = "single"


@dataclass(frozen=True, kw_only=True, slots=True)
class DPConfig:
    """nn.DataParallel: one process, threads over all CUDA devices. Kept as the historical baseline."""

    name: Literal["dp"] = "dp"


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPConfig:
    """DistributedDataParallel (Li et al. 2020): replicas, gradients all-reduced in buckets."""

    name: Literal["ddp"] = "ddp"
    bucket_cap_mb: float = 25.0
    """Largest gradient bucket in MiB."""
    gradient_as_bucket_view: bool = True
    """Gradients live inside the buckets: one copy less."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""
    find_unused_parameters: bool = False
    """Search the graph each step for parameters without a gradient."""
    communication_hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Compression of the gradients on the wire."""
    powersgd_rank: int = 4
    """Rank of PowerSGD's approximation (Vogels et al. 2019)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Zero1Config(DDPConfig):
    """DDP with the optimizer state sharded over ranks (ZeRO stage 1, Rajbhandari et al. 2020)."""

    name: Literal["zero1"] = "zero1"  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPConfig:
    """`fully_shard` per block (PyTorch FSDP2): parameters, gradients and optimizer state sharded."""

    name: Literal["fsdp", "zero3", "zero2"] = "fsdp"
    reshard_after_forward: bool = True
    """Free gathered parameters after forward and gather them again in backward (ZeRO-3); false: ZeRO-2."""
    blocks_per_unit: int = 1
    """Blocks gathered together; 0 = the whole model as one unit."""
    prefetch_depth: int = 1
    """Units gathered ahead of the one in use."""
    cpu_offload: bool = False
    """Parameters, gradients and optimizer state live in host memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HSDPConfig(FSDPConfig):
    """Hybrid sharding: shard inside a group of dp_shard ranks, replicate over dp_replicate groups."""

    name: Literal["hsdp"] = "hsdp"  # type: ignore[assignment]
    dp_replicate: int = 2
    dp_shard: int = -1
    """-1 = all the ranks that dp_replicate leaves."""


# ---- numerics ------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionConfig:
    """Master weights are always float32; these are the types of compute and of gradient reduction."""

    name: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compute_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    reduce_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """FSDP only: type in which gradients are reduced. DDP reduces what its communication_hook says."""
    tf32: bool = False
    """Let CUDA multiply float32 matrices in TensorFloat-32."""
    initial_loss_scale: float | None = None
    """Start of dynamic loss scaling; null = no scaling."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWConfig:
    """AdamW (Loshchilov & Hutter 2019). Weight decay acts on matrices only, not on biases and norms."""

    name: Literal["adamw"] = "adamw"
    lr: float = 6e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    eps: float = 1e-8
    weight_decay: float = 0.1
    fused: bool | Literal["auto"] = "auto"
    """One kernel for the whole update, where the device and the parameters allow it."""
    in_backward: bool = False
    """Update each parameter as soon as its gradient is there, and free the gradient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SGDConfig:
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    in_backward: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantSchedule:
    """The same learning rate at every step, after an optional warm-up."""

    name: Literal["constant"] = "constant"
    warmup_steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CosineSchedule:
    """Linear warm-up, then a cosine down to `min_lr_ratio` times the learning rate at the last step."""

    name: Literal["cosine"] = "cosine"
    warmup_steps: int = 5
    min_lr_ratio: float = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class WSDSchedule:
    """Warm-up, stable, decay (Hu et al. 2024): linear decay over the last `decay_steps`."""

    name: Literal["wsd"] = "wsd"
    warmup_steps: int = 5
    decay_steps: int = 10
    min_lr_ratio: float = 0.0


# ---- the run -------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Batch, length and what happens around a step."""

    steps: int = 15
    """Optimizer steps in the whole run."""
    global_batch_size: int = 8
    """Samples per optimizer step over all ranks. Accumulation is derived from it."""
    micro_batch_size: int = 0
    """Samples per forward and backward on one rank; 0 = the largest that divides, at most 4."""
    clip_norm: float | None = 1.0
    """Largest global gradient norm; null = no clipping."""
    log_every: int = 1
    """Steps between records in metrics.jsonl. Other steps never wait for the device."""
    evaluate_every: int = 0
    """Steps between evaluations on the held-out split; 0 = only after the last step; -1 = never."""
    evaluate_samples: int | None = 32
    """Held-out samples per evaluation over all ranks; null = all."""
    activation_checkpoint_every: int = 0
    """Recompute activations in backward: 0 = none, 1 = every block (full), k = every k-th block."""
    compile: bool = False
    """torch.compile each block."""
    deterministic: bool = False
    """Refuse operations that are not deterministic."""
    garbage_collect_every: int = 50
    """Steps between Python garbage collections, so that ranks pause together; 0 = leave it to Python."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints of model, optimizer and step (torch.distributed.checkpoint)."""

    every: int = 500
    """Steps between checkpoints; 0 = none on the way."""
    at_end: bool = True
    """One after the last step."""
    keep: int = 2
    """Complete checkpoints kept; older ones are removed."""
    asynchronous: bool = True
    """Write in a background thread while training goes on."""
    export: bool = False
    """After the last step write the weights as safetensors in Hugging Face's layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordConfig:
    """What a run leaves behind for a later diagnosis."""

    level: Literal["off", "light", "full"] = "light"
    black_box_every_s: float = 5.0
    """Seconds between small flight-recorder snapshots that survive SIGKILL."""
    telemetry_every_s: float = 1.0
    """Seconds between device and host samples."""
    flight_entries: int = 2000
    """Collectives the flight recorder keeps per rank."""
    profile_start: int = 3
    """First step of the profiler window (level full)."""
    profile_steps: int = 2
    """Steps in the profiler window (level full)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoTracker:
    """metrics.jsonl only."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class WandbTracker:
    """Mirror metrics to Weights & Biases from rank 0."""

    name: Literal["wandb"] = "wandb"
    project: str = "dtk"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    mode: Literal["auto", "online", "offline"] = "auto"
    """auto: online when a key is configured and the server answers at once, else offline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorboardTracker:
    """Mirror metrics to TensorBoard event files in the run folder (extra `tensorboard`)."""

    name: Literal["tensorboard"] = "tensorboard"


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherConfig:
    """How the ranks start. Under torchrun or srun the ranks exist already and only join."""

    name: Literal["local"] = "local"
    nproc: int | Literal["auto"] = "auto"
    """Ranks on this machine; auto = one per GPU, or 2 on CPU (1 for strategy single and dp)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    threads: int | Literal["auto"] = "auto"
    """CPU threads per rank; auto = the cores shared out."""
    max_restarts: int = 0
    """Restarts from the last checkpoint after a failure, in the same run folder."""
    timeout_s: float = 300.0
    """Longest wait in a collective."""
    master_port: int = 0
    """Port of the rendezvous; 0 = a free one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NCCLConfig:
    """Environment variables for NCCL, set before any communicator exists. Your own always win."""

    name: str = "default"
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A whole experiment, resolved: what `runs/<id>/config.yaml` holds."""

    model: Any
    data: Any
    strategy: Any
    precision: PrecisionConfig
    optimizer: Any
    schedule: Any
    train: TrainConfig
    checkpoint: CheckpointConfig
    record: RecordConfig
    tracker: Any
    launcher: LauncherConfig
    nccl: NCCLConfig
    seed: int = 1234
    """Initial weights and sample order are functions of it."""
    runs_folder: str = "runs"
    """Where run folders are made."""
    resume: str | None = None
    """A run folder to continue."""
    allow_targets: list[str] = field(default_factory=list)
    """Import paths (or prefixes ending in `.*`) that `_target_` may name besides dtk's own."""


KINDS: dict[str, tuple[str, dict[str, type]]] = {
    "model": (
        "architecture",
        {"gpt": GPTConfig, "llama": LlamaConfig, "encoder": EncoderConfig, "custom": CustomModelConfig},
    ),
    "data": (
        "name",
        {
            "stdlib": StdlibData,
            "text": TextData,
            "tokens": TokensData,
            "hf": HFData,
            "classification": ClassificationData,
            "synthetic": SyntheticData,
        },
    ),
    "strategy": (
        "name",
        {
            "single": SingleConfig,
            "dp": DPConfig,
            "ddp": DDPConfig,
            "zero1": Zero1Config,
            "zero2": FSDPConfig,
            "zero3": FSDPConfig,
            "fsdp": FSDPConfig,
            "hsdp": HSDPConfig,
        },
    ),
    "optimizer": ("name", {"adamw": AdamWConfig, "sgd": SGDConfig}),
    "schedule": ("name", {"constant": ConstantSchedule, "cosine": CosineSchedule, "wsd": WSDSchedule}),
    "tracker": ("name", {"none": NoTracker, "wandb": WandbTracker, "tensorboard": TensorboardTracker}),
}
"""Section -> (discriminating key, value of that key -> dataclass)."""
