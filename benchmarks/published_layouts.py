"""Published layouts: whether their memory fits, and predicted beside published utilisation. Prints Markdown.

    python benchmarks/published_layouts.py

Published figures are FLOP/s of a device over its peak in bfloat16. Where the source counts the FLOPs of recomputation
too, the predicted figure does as well (4/3 of MFU). Software of 2021 and 2022 differed from dtk in three ways, which
the column "its software" brings into the step: its softmax read and wrote the scores of attention in memory, as
FlashAttention did not exist, gradients were reduced after the last backward, not beside it, and the residual stream had
16 bits, which under dtk's autocast (ddp, zero1) is float32.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dtk.config.schema import Config  # noqa: E402
from dtk.plan.formulas.prediction import Time  # noqa: E402
from dtk.plan.job import machine, planned_job, predict  # noqa: E402
from dtk.plan.timing.hardware import Hardware, load_hardware  # noqa: E402

NARAYANAN = "Narayanan et al. 2021, table 1"
LLAMA = "Grattafiori et al. 2024, table 4"
RECOMPUTED = "train.activation_checkpoint_every=1"
# Sequence parallelism came with Korthikanti et al. 2022.
OF_ITS_TIME = [RECOMPUTED, "parallel.sequence_parallel=false"]
STREAM_BYTES = 2 * 10 + 2 * 6
"""What dtk moves more for each element of the residual stream in a block's forward under autocast: the stream in
float32 where norms and residual sums touch 10 elements, and two casts of 6 bytes. Megatron's has 16 bits."""
STREAM_PASSES = 4
"""Forward, recomputation, and backward, which takes twice a forward."""
SCORES_PASSES = 7
"""A softmax reads and writes its scores forward, again when it is recomputed, and reads two and writes one backward."""


def megatron(layers: int, width: int, heads: int) -> list[str]:
    """Return a model of that table: GPT with 51,200 words and samples of 2,048 tokens."""
    sizes = [f"model.layers={layers}", f"model.width={width}", f"model.heads={heads}", "model.vocab_size=51200"]
    return [
        "model=gpt3_175b",
        *sizes,
        "data.sequence_length=2048",
        "strategy=ddp",
        "train.micro_batch_size=1",
        *OF_ITS_TIME,
    ]


LLAMA_405B = [
    *("model=llama3_405b", "data.sequence_length=8192", "strategy=zero1", "train.micro_batch_size=1"),
    *("parallel.tp=8", "parallel.pp=16"),
]
# Section 3.3.2: one block less on the first and the last stage, whose chunk is the embedding or the head alone. So 126
# blocks and these two are 128 chunks of one block, 8 on each of 16 ranks. A stage here has a block at least: 7 chunks.
INTERLEAVED = ["parallel.schedule=interleaved_1f1b", "parallel.stages_per_rank=7"]
ROWS = (
    ("BLOOM 176B", 384, "a100_80", 2048, 0.50, "Le Scao et al. 2022, section 3.2.5 (156 TFLOP/s)", True,
     ["model=bloom_176b", "data.sequence_length=2048", "strategy=zero1", "train.micro_batch_size=2", *OF_ITS_TIME,
      "parallel.tp=4", "parallel.pp=12"]),
    ("Megatron 145.6B", 1536, "a100_80", 2304, 0.47, NARAYANAN, True,
     [*megatron(80, 12288, 96), "parallel.tp=8", "parallel.pp=8"]),
    ("Megatron 310.1B", 1920, "a100_80", 2160, 0.50, NARAYANAN, True,
     [*megatron(96, 16384, 128), "parallel.tp=8", "parallel.pp=16"]),
    ("Megatron 529.6B", 2520, "a100_80", 2520, 0.52, NARAYANAN, True,
     [*megatron(105, 20480, 128), "parallel.tp=8", "parallel.pp=35"]),
    ("Megatron 1008B", 3072, "a100_80", 3072, 0.52, NARAYANAN, True,
     [*megatron(128, 25600, 160), "parallel.tp=8", "parallel.pp=64"]),
    ("Megatron 1008B, sequence parallel", 3072, "a100_80", 3072, 0.52, f"{NARAYANAN}, which has none", True,
     [*megatron(128, 25600, 160), "parallel.tp=8", "parallel.pp=64", "parallel.sequence_parallel=true"]),
    ("Llama 3 405B, 1f1b", 16384, "h100_sxm", 2048, 0.41, LLAMA, False, LLAMA_405B),
    ("Llama 3 405B", 8192, "h100_sxm", 2048, 0.43, LLAMA, False, [*LLAMA_405B, *INTERLEAVED]),
    ("Llama 3 405B", 16384, "h100_sxm", 2048, 0.41, LLAMA, False, [*LLAMA_405B, *INTERLEAVED]),
    ("Llama 3 405B, recomputed", 16384, "h100_sxm", 2048, 0.41, f"{LLAMA}, which does not recompute", False,
     [*LLAMA_405B, *INTERLEAVED, RECOMPUTED]),
)  # fmt: skip


def in_its_software(config: Config, ranks: int, hardware: Hardware, time: Time) -> float:
    """Return the seconds of a step whose attention has scores in memory, which reduces no gradient beside backward, and
    whose residual stream has 16 bits.
    """
    model, length, count = config.model, config.data.sequence_length, config.batch_plan(ranks).accumulation_steps
    elements = config.train.micro_batch_size * model.heads * length**2 / config.parallel.tp
    blocks = max(map(len, config.stage_blocks(model.layers)))
    scores_s = blocks * count * SCORES_PASSES * 2 * elements / hardware.memory_rate
    stream = config.train.micro_batch_size * length * model.width
    stream //= config.parallel.tp if config.parallel.sequence_parallel else 1
    narrower_s = blocks * count * STREAM_PASSES * STREAM_BYTES * stream / hardware.memory_rate
    reduced = ("dp_shard", "dp_replicate")
    reduced_s = sum(each.seconds for each in time.transfers if each.group in reduced and "reduce" in each.op)
    return time.step_s + scores_s - narrower_s + min(reduced_s, time.communication_s - time.exposed_s)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    heads = ("model", "ranks", "layout", "memory", "fits", "predicted", "its software", "published", "off", "source")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, ranks, device, batch, published, source, recomputed, layout in ROWS:
        hardware = load_hardware(device)
        words = [*layout, "precision=bf16", f"train.global_batch_size={batch}", f"launcher.world_size={ranks}"]
        vocabulary = planned_job([*words, "data=synthetic"], None, ranks).config.model.vocab_size
        config = planned_job([*words, "data=synthetic", f"data.vocab_size={vocabulary}"], None, ranks).config
        prediction = predict(config, ranks, machine(config, hardware), "closed_form")
        assert prediction.time is not None and prediction.time.mfu is not None
        used = prediction.time.mfu * (4 / 3 if recomputed else 1)
        fits = "yes" if prediction.fits else f"no, {prediction.excess_bytes / 2**30:.1f} GiB over"
        columns = (name, f"{ranks:,}", f"{config.mesh(ranks)}", f"{prediction.memory.peak_bytes / 2**30:.1f} GiB", fits)
        old = (
            used * prediction.time.step_s / in_its_software(config, ranks, hardware, prediction.time)
            if recomputed
            else used
        )
        figures = (f"{used:.1%}", f"{old:.1%}", f"{published:.0%}", f"{old / published - 1:+.0%}", source)
        print(f"| {' | '.join((*columns, *figures))} |", flush=True)


if __name__ == "__main__":
    main()
