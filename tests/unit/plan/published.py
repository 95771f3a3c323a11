"""Formulas of the literature as they were published: what the engine's own figures are checked against.

Each works on numbers alone and reproduces its table to the printed digit (a test). They leave out what the engine
counts: padding, buffers of collectives, gathered units, logits. GB are 10^9 bytes.
"""

from typing import Literal

Stage = Literal[0, 1, 2, 3]
"""Of ZeRO: 0 shards nothing (data parallelism), 1 the optimizer state, 2 gradients too, 3 parameters too."""
Recomputation = Literal["none", "selective", "full"]

ADAM_BYTES = 12
"""K of Rajbhandari et al. 2020: float32 copy of the parameters, momentum and variance, per parameter."""


def model_states_bytes(parameters: float, ranks: int, stage: Stage, optimizer_bytes: int = ADAM_BYTES) -> float:
    """Bytes per rank of parameters, gradients and optimizer state in mixed precision.

    Source: Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, section 3 and figure 1: 2 bytes each for a parameter
    and its gradient, K = 12 for Adam. DDP (4 + K) Psi = 16 Psi; stage 1 4 Psi + K Psi / N; stage 2
    2 Psi + (2 + K) Psi / N; stage 3 (4 + K) Psi / N. For 7.5 x 10^9 parameters on 64 ranks 120, 31.4, 16.6 and 1.9 GB.

    Args:
        parameters: Psi.
        ranks: N.
        stage: what is sharded.
        optimizer_bytes: K.
    """
    whole, shared = {
        0: (4 + optimizer_bytes, 0),
        1: (4, optimizer_bytes),
        2: (2, 2 + optimizer_bytes),
        3: (0, 4 + optimizer_bytes),
    }[stage]
    return parameters * (whole + shared / ranks)


def communication_volume(parameters: float, stage: Stage) -> float:
    """Elements that a rank sends (and as many receives) per step, for many ranks.

    Source: Rajbhandari et al. 2020, section 5 ("Communication Analysis of ZeRO-DP"): all-reduce is a reduce-scatter
    and an all-gather of Psi each, so 2 Psi for DDP; stages 1 and 2 send the same, stage 3 half as much again, 3 Psi,
    since parameters are gathered for forward and for backward.
    """
    return parameters * (3 if stage == 3 else 2)


def ring_traffic_bytes(parameters: float, ranks: int, stage: Stage, reduce_bytes: int = 2) -> float:
    """Bytes that a rank sends per step by ring algorithms, 16-bit parameters.

    Source: the volumes above times (N - 1) / N (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms").

    Args:
        parameters: Psi.
        ranks: N.
        stage: what is sharded.
        reduce_bytes: per element of the gradient reduction.
    """
    share = (ranks - 1) / ranks
    if stage == 3:
        return (2 * 2 + reduce_bytes) * parameters * share
    return 2 * reduce_bytes * parameters * share


def transformer_parameters(layers: int, width: int, vocab: int, context: int) -> int:
    """Parameters of a GPT with tied embeddings, biases and two norms per block: 12 L h^2 + 13 L h + V h + s h + 2 h.

    Source: Brown et al. 2020 and Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
    Clusters", equation 2 (P = 12 l h^2 (1 + 13 / 12 h + (V + s) / 12 l h)), plus the final norm.
    """
    return 12 * layers * width**2 + 13 * layers * width + (vocab + context + 2) * width


def model_states_total_bytes(layers: int, width: int) -> float:
    """Bytes of all states of a transformer in mixed precision: 240 L h^2, of which parameters are 12 L h^2.

    Source: Rajbhandari et al. 2021, "ZeRO-Infinity", arXiv 2104.07857, section 3, equations 1 and 2: 20 bytes per
    parameter, as gradients are kept in float32 too.
    """
    return 240.0 * layers * width**2


def activation_bytes(
    sequence: int,
    batch: int,
    width: int,
    heads: int,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recomputation: Recomputation = "none",
) -> float:
    """Bytes that one transformer layer keeps for backward, 16-bit, with dropout and without flash attention.

    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198,
    table 2: s b h (34 + 5 a s / h); with t-way tensor parallelism s b h (10 + 24 / t + 5 a s / (h t)); with sequence
    parallelism too s b h / t (34 + 5 a s / h); with selective recomputation 5 a s / h falls away; full: 2 s b h.

    Args:
        sequence: s, tokens per sample.
        batch: b, samples in the micro-batch.
        width: h.
        heads: a.
        tensor_parallel: t.
        sequence_parallel: whether norms and dropout are split along the sequence.
        recomputation: selective = attention's matrix only, full = everything but the layer's input.
    """
    unit = float(sequence * batch * width)
    if recomputation == "full":
        return 2 * unit
    matrix = 0.0 if recomputation == "selective" else 5 * heads * sequence / width
    if sequence_parallel:
        return unit / tensor_parallel * (34 + matrix)
    return unit * (10 + (24 + matrix) / tensor_parallel)


def float32_states(stage: Literal[0, 1, 3], ranks: int) -> float:
    """Bytes of model states as multiples of P = 4 Psi, all in float32 with AdamW, as torch holds them.

    Source: sums over torch's own buffers (Li et al. 2020, "PyTorch Distributed", section 3; Zhao et al. 2023, "PyTorch
    FSDP", section 3): parameters, gradients and two moments; gradients are views of DDP's buckets, and each term is
    divided by the ranks that share it. No master copy exists, as parameters are float32.
    """
    return {0: 4.0, 1: 2 + 2 / ranks, 3: 4 / ranks}[stage]


def fsdp_peak_elements(sharded: float, unsharded_units: list[float], ranks: int) -> float:
    """Elements of parameters on a rank at FSDP's peak.

    Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 16(12), section
    3.2.1: with N units of sizes psi_i and sharding factor F the peak is O(sum psi_i / F + max psi_i).
    """
    return sharded / ranks + max(unsharded_units)


def fsdp_hybrid_traffic(model_bytes: float, ranks: int, per_host: int) -> tuple[float, float, float]:
    """Bytes per rank across hosts: replication, full sharding, hybrid sharding inside a host.

    Source: Zhao et al. 2023, section 3.2.2: with M bytes, W ranks and G accelerators per host, full replication costs
    2 M (W - 1) / W, full sharding 3 M (W - 1) / W; hybrid sharding 2 M (W - 1) / (G W), as only the shards of the
    gradients are reduced between hosts.
    """
    share = (ranks - 1) / ranks
    return 2 * model_bytes * share, 3 * model_bytes * share, 2 * model_bytes * share / per_host
