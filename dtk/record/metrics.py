"""What each metric means, and model FLOPs utilisation with the peak it is measured against."""

import re

DEFINITIONS: dict[str, str] = {
    "step": "optimizer steps finished when the record was written",
    "attempt": "number of the start that wrote the record, 0 for the first; a resumed run may make steps again, and of "
    "two records of a step the later attempt's counts",
    "loss": "mean training loss per valid target over the global batch of that step, in nats (cross entropy)",
    "lr": "learning rate that the step used, a pure number",
    "grad_norm": "Euclidean norm of the whole gradient over all ranks before clipping; null when not computed",
    "loss_scale": "factor on the loss under fp16, a pure number",
    "tokens": "tokens trained on since step 0 by all ranks, padding included",
    "tokens_per_s": "tokens per second over all ranks in the window since the last record, without evaluation and "
    "checkpoints; in summary.json tokens per step over the median step time",
    "step_time_s": "wall-clock seconds per optimizer step in the window since the last record, without evaluation and "
    "checkpoints; in summary.json the median of the windows after the first two",
    "steps_measured": "number of windows that the median step time was taken of",
    "mfu": "model FLOPs utilisation = tokens_per_s * flops_per_token / (world_size * peak_flops), a fraction of 1; "
    "flops_per_token by PaLM (Chowdhery et al. 2022), appendix B, recomputation not counted; null when unknown",
    "mfu_reason": "the peak that mfu was measured against, or why mfu is null",
    "samples_hash": "sum modulo 2^64, in hexadecimal, over all samples since the last record of a 64-bit mix of step "
    "and sample id: equal where the same samples were trained on in the same steps, whatever the ranks and the order",
    "peak_memory_bytes": "bytes at the highest point on rank 0 since the process began: tensors by the CUDA allocator "
    "(max_memory_allocated), or on CPU the resident set of the process (VmHWM, else ru_maxrss)",
    "peak_memory_bytes_per_rank": "peak_memory_bytes of every rank, in order of rank",
    "pipeline_bubble": "share of the last step in which ranks computed neither forward nor backward, on average",
    "pipeline_bubble_ideal": "the same for stages that take equally long and messages that take no time",
    "expert_load": "tokens of the busiest expert over the mean of the experts of its block, in the last step over all "
    "ranks, for the block where it is largest",
    "expert_rank_load": "the same for the experts of an ep rank together",
    "expert_dropped": "share of the choices of experts in the last step that met a full one, where it is largest",
    "float16_overflows": "averaged gradients since the start of the attempt, counted by element, that "
    "strategy.communication_hook=fp16 made infinite because float16 ends at 65,504",
    "communicated_bytes_per_step": "bytes of the full buffers of all collectives that one rank issues in a step, as "
    "declared by the strategy: the reduced tensor of an all_reduce, the output of an all_gather, the input of a "
    "reduce_scatter, the own tokens of an all_to_all; not the bytes on the wire",
    "validation_loss": "mean loss per valid target over the held-out samples, in nats, each sample counted once",
    "validation_classes": "classes that occur among the samples of the evaluation",
    "validation_accuracy": "share of valid held-out targets (classes, or tokens of a language model) that were "
    "predicted as most likely, a fraction of 1, each counted once",
    "validation_samples": "held-out samples in the evaluation, over all ranks",
    "evaluation_time_s": "wall-clock seconds of the evaluation",
    "parameters": "number of trained parameters of the whole model, tied weights counted once",
    "world_size": "number of ranks",
    "synthetic_data": "whether the data was random tokens, so that the loss means nothing",
}
"""Name of a metric -> one sentence with its unit."""

FORMULA = "mfu = tokens_per_s * flops_per_token / (world_size * peak_flops)"

_HALF = ("bfloat16", "float16")
_SHEETS = {
    "A100": "NVIDIA A100 Tensor Core GPU data sheet (2021), without sparsity; PCIe and SXM alike",
    "H100": "NVIDIA H100 Tensor Core GPU data sheet (2023); half and TF32 are printed there with sparsity: twice these",
    "H200": "NVIDIA H200 Tensor Core GPU data sheet (2024); half and TF32 are printed there with sparsity: twice these",
    "B200": "NVIDIA HGX B200 data sheet (2024), figures of eight GPUs divided by eight, without sparsity",
    "L40S": "NVIDIA L40S data sheet (2023), without sparsity",
    "L4": "NVIDIA L4 data sheet (2023), with sparsity there: twice these",
    "V100": "NVIDIA V100 data sheet (2020): tensor cores take float16 only",
    "T4": "NVIDIA T4 data sheet (2019): tensor cores take float16 only",
    "Ada": "NVIDIA Ada GPU architecture white paper (2023), appendix A: dense, accumulating in float32",
    "GA102": "NVIDIA GA102 GPU architecture white paper (2020), appendix A: dense, accumulating in float32",
    "MI250X": "AMD Instinct MI250X data sheet (2021), matrix figures halved: each of its two dies is a device",
    "MI300X": "AMD Instinct MI300X data sheet (2023), matrix figures without sparsity",
}
_PEAKS: tuple[tuple[str, tuple[str, ...], float, float | None, float, str], ...] = (
    (r"A100-(SXM4|PCIE|PCIe)-\d+GB|A100 80GB PCIe", _HALF, 312, 156, 19.5, "A100"),
    (r"H100 (80GB HBM3|SXM5.*)", _HALF, 989.4, 494.7, 67, "H100"),
    (r"H100 PCIe", _HALF, 756, 378, 51, "H100"),
    (r"H100 NVL", _HALF, 835, 417.5, 60, "H100"),
    (r"H200", _HALF, 989.4, 494.7, 67, "H200"),
    (r"H200 NVL", _HALF, 835, 417.5, 60, "H200"),
    (r"B200", _HALF, 2250, 1125, 75, "B200"),
    (r"L40S", _HALF, 362.05, 183, 91.6, "L40S"),
    (r"L4", _HALF, 121, 60, 30.3, "L4"),
    (r"V100-SXM[23]-\d+GB(-LS)?", ("float16",), 125, None, 15.7, "V100"),
    (r"V100-PCIE-\d+GB", ("float16",), 112, None, 14, "V100"),
    (r"T4", ("float16",), 65, None, 8.1, "T4"),
    (r"GeForce RTX 4090", _HALF, 165.2, 82.6, 82.6, "Ada"),
    (r"GeForce RTX 3090", _HALF, 71, 35.6, 35.6, "GA102"),
    (r"MI250X", _HALF, 191.5, None, 47.85, "MI250X"),
    (r"MI300X", _HALF, 1307.4, 653.7, 163.4, "MI300X"),
)
"""Whole device name without its vendor, its 16-bit types, TFLOP/s in these, in TF32 and in float32, source."""

_VENDOR = re.compile(r"^(NVIDIA|Tesla|AMD Instinct|AMD)\s+", re.IGNORECASE)


def published_peaks(device_name: str) -> tuple[dict[str, float], str]:
    """Return the published dense peaks of one device, and where they are printed.

    Args:
        device_name: as `torch.cuda.get_device_name` gives it.

    Returns:
        FLOP/s by type of the matrix products (float32, tf32, bfloat16, float16), and the source; nothing and "" for
        a device that is not known.
    """
    short = device_name.strip()
    while (without := _VENDOR.sub("", short)) != short:
        short = without
    for pattern, halves, half, tf32, single, source in _PEAKS:
        if re.fullmatch(pattern, short):
            printed = {**dict.fromkeys(halves, half), "tf32": tf32, "float32": single}
            return {dtype: peak * 1e12 for dtype, peak in printed.items() if peak is not None}, _SHEETS[source]
    return {}, ""


def peak_flops(device_name: str, dtype: str) -> tuple[float | None, str]:
    """Return the published dense peak of one device.

    Args:
        device_name: as `torch.cuda.get_device_name` gives it.
        dtype: type of the matrix products: float32, tf32, bfloat16 or float16.

    Returns:
        FLOP/s and what it is, or None and the reason.
    """
    peaks, _ = published_peaks(device_name)
    if not peaks:
        return None, f"no published peak is known for the device {device_name}"
    if dtype not in peaks:
        return None, f"{device_name} has no published peak for {dtype}"
    peak = peaks[dtype]
    return peak, f"{device_name}, {dtype} dense, {peak / 1e12:g} TFLOP/s per device (data sheet)"


def model_flops_utilization(
    tokens_per_s: float, flops_per_token: int | None, world_size: int, peak: float | None, peak_reason: str
) -> tuple[float | None, str]:
    """MFU (Chowdhery et al. 2022, PaLM, appendix B).

    Args:
        tokens_per_s: over all ranks.
        flops_per_token: training FLOPs of the model per token; None when the model does not say.
        world_size: number of devices, one per rank.
        peak: FLOP/s of one device; None when unknown.
        peak_reason: what the peak is, or why it is unknown.

    Returns:
        fraction of 1 with formula and peak, or None with the reason.
    """
    if peak is None:
        return None, peak_reason
    if flops_per_token is None:
        return None, "the model does not say its FLOPs per token (method flops_per_token)"
    return tokens_per_s * flops_per_token / (world_size * peak), f"{FORMULA}; {peak_reason}"
