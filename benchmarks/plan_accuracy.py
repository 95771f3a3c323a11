"""Predicted against actual peak of a step: both engines of `dtk plan`, every strategy. Prints Markdown.

    python benchmarks/plan_accuracy.py --models gpt2_tiny,llama_tiny,bert_tiny
    python benchmarks/plan_accuracy.py --models gpt2 --sequence-length 64 --batches 1
    python benchmarks/plan_accuracy.py --layouts --sequence-length 64    # those of the parity table
    python benchmarks/plan_accuracy.py --settings --ranks 2    # hooks, int8 of ZeRO++, update in backward
    python benchmarks/plan_accuracy.py --deepspeed --ranks 2 --batches 4 --sequence-length 32

Actual: allocator events of the torch profiler on real gloo ranks, tensors that live since the set-up included, of the
rank that held most; the lower of the second and the third step, as what gloo's threads free late only adds. What gloo
allocates inside its collectives (a copy of the input of reduce_scatter, a flat one of the output of all_gather) is left
out: it depends on timing and no other backend has it. `with gloo` is the peak with it.
Also holds the predicted collectives against those of a real step: any difference ends the program with 1.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dtk.errors import DtkError  # noqa: E402
from dtk.plan.compare import STRATEGIES  # noqa: E402
from dtk.plan.formulas.closed_form import closed_form  # noqa: E402
from dtk.plan.formulas.prediction import Prediction  # noqa: E402
from dtk.plan.job import planned_job  # noqa: E402
from dtk.plan.simulated.engine import simulate  # noqa: E402
from tests.dist.layouts import EXPERTS, LAYOUTS  # noqa: E402
from tests.dist.ranks import run_ranks  # noqa: E402

DATA = {
    "bert_tiny": ["data=classification", "data.samples_per_class=50"],
    "llama_tiny": ["data=synthetic", "data.vocab_size=512"],
    "moe_tiny": ["data=synthetic", "data.vocab_size=512"],
    "gpt2": ["data=synthetic", "data.vocab_size=50257"],
}
SETTINGS = {
    **{f"ddp {hook}": [f"strategy.communication_hook={hook}"] for hook in ("none", "bf16", "int8", "topk")},
    "fsdp": [],
    "fsdp int8 weights": ["strategy.quantized_weights=true"],
    "fsdp int8 gradients": ["strategy.quantized_gradients=true"],
    "fsdp int8 both": ["strategy.quantized_weights=true", "strategy.quantized_gradients=true"],
    **{
        f"{strategy}, {kind}": ["model.layers=6", "train.global_batch_size=2", "train.clip_norm=null", *more]
        for strategy in ("single", "fsdp", "zero2")
        for kind, more in (("6 blocks", []), ("6 blocks, in backward", ["optimizer.in_backward=true"]))
    },
}
"""Of gpt2_tiny with 8 tokens a sample: activations are few, so that buffers and gradients set the peak. Not powersgd,
which frees on gloo's threads, where the profiler does not see it: `compression.py --memory` has its resident memory."""
QUIET = ("train.evaluate_every=-1", "checkpoint=off", "record=off", "launcher.device=cpu")
DEEPSPEED: dict[str, dict[str, Any]] = {
    "whole bucket": {},
    "small buckets": {"reduce_bucket_size": 400_000},
    "overlap_comm": {"overlap_comm": True},
    "small buckets, overlap_comm": {"reduce_bucket_size": 400_000, "overlap_comm": True},
    "nothing ahead": {"stage3_prefetch_bucket_size": 0},
    "little ahead": {"stage3_prefetch_bucket_size": 100_000},
    "nothing kept": {"stage3_max_live_parameters": 1, "stage3_max_reuse_distance": 0},
}
"""Section `zero_optimization` of a ds_config. Limits of stage 3 are read by that stage only."""
HEAD = ("model", "strategy", "ranks", "batch", "recompute", "actual", "with gloo", "simulated", "error", "closed form")


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt2_tiny,llama_tiny,bert_tiny")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--batches", default="2,4", help="samples of a micro-batch")
    parser.add_argument("--recompute", default="0,1", help="train.activation_checkpoint_every")
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--layouts", action="store_true", help="the layouts of the parity table, in micro-batches of 2")
    parser.add_argument("--settings", action="store_true", help="SETTINGS, with 8 tokens a sample")
    parser.add_argument("--deepspeed", action="store_true", help="stages of DeepSpeed, with DEEPSPEED")
    return parser.parse_args()


def deepspeed_cases(arguments: argparse.Namespace, ranks: int, folder: Path) -> dict[str, Any]:
    """Write a ds_config for each of DEEPSPEED; row of the table -> composed job."""
    by_row = {}
    for number, (name, section) in enumerate(DEEPSPEED.items()):
        file = folder / f"ds_config_{number}.json"
        file.write_text(json.dumps({"zero_optimization": section}))
        for model in arguments.models.split(","):
            for batch in map(int, arguments.batches.split(",")):
                for stage in (3,) if any(key.startswith("stage3") for key in section) else (1, 2, 3):
                    row = "|".join((model, f"deepspeed_zero{stage}, {name}", str(ranks), str(batch), "0"))
                    sizes = [f"train.micro_batch_size={batch}", f"train.global_batch_size={batch * ranks}"]
                    base = [f"model={model}", *DATA.get(model, ["data=synthetic"]), *QUIET, *sizes]
                    base.append(f"data.sequence_length={arguments.sequence_length}")
                    typed = [f"strategy=deepspeed_zero{stage}", f"strategy.config={file}"]
                    by_row[row] = planned_job([*base, *typed], None, ranks)
    return by_row


def cases(arguments: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """Every combination on so many ranks: row of the table -> composed job."""
    result = {}
    if arguments.settings:
        for name, typed in SETTINGS.items():
            strategy = name.split(" ")[0].rstrip(",")
            if (strategy == "single") == (ranks == 1):
                batch = 1 if "6 blocks" in name and ranks > 1 else 2 if ranks == 1 else 4
                sizes = [f"train.micro_batch_size={batch}", f"train.global_batch_size={batch * ranks}"]
                base = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=8", f"strategy={strategy}"]
                result[f"gpt2_tiny|{name}|{ranks}|{batch}|0"] = planned_job(
                    [*base, *sizes, *QUIET, *typed], None, ranks
                )
        return result
    if arguments.layouts:
        for model, table in (("gpt2_tiny", LAYOUTS), ("moe_tiny", EXPERTS)):
            for name, typed in table.get(ranks, {}).items():
                data = [*DATA.get(model, ["data=synthetic"]), f"data.sequence_length={arguments.sequence_length}"]
                sizes = ["train.global_batch_size=16", "train.micro_batch_size=2"]
                overrides = [f"model={model}", *data, *sizes, *QUIET, *typed]
                result[f"{model}|{name}|{ranks}|2|0"] = planned_job(overrides, None, ranks)
        return result
    for model in arguments.models.split(","):
        for strategy in arguments.strategies.split(","):
            if (strategy == "single") != (ranks == 1):
                continue
            for batch in map(int, arguments.batches.split(",")):
                for recompute in arguments.recompute.split(","):
                    overrides = [
                        f"model={model}",
                        *DATA.get(model, ["data=synthetic"]),
                        f"strategy={strategy}",
                        *(["strategy.dp_replicate=2"] if strategy == "hsdp" else []),
                        f"data.sequence_length={arguments.sequence_length}",
                        f"train.global_batch_size={batch * ranks}",
                        f"train.micro_batch_size={batch}",
                        f"train.activation_checkpoint_every={recompute}",
                        *QUIET,
                    ]
                    result["|".join((model, strategy, str(ranks), str(batch), recompute))] = planned_job(
                        overrides, None, ranks
                    )
    return result


def prediction_of(engine: Callable[[Any, int], Prediction], config: Any, ranks: int) -> Prediction | None:
    """Return what an engine predicts; None where it says nothing of this job."""
    try:
        return engine(config, ranks)
    except DtkError:
        return None


def calls(prediction: Prediction) -> dict[tuple[str, str], tuple[int, int]]:
    """(op, group) -> (calls, bytes)."""
    return {(transfer.op, transfer.group): (transfer.count, transfer.size_bytes) for transfer in prediction.traffic}


def measure(arguments: argparse.Namespace) -> int:
    """Print the table; 1 when a collective was predicted wrongly."""
    worst = {"simulated": (0.0, "-"), "closed form": (0.0, "-")}
    wrong: list[str] = []
    print(f"| {' | '.join(HEAD)} | error |\n|{'---|' * (len(HEAD) + 1)}")
    alone = () if arguments.layouts or arguments.deepspeed else (1,)
    expected = sorted({*alone, *map(int, arguments.ranks.split(","))})
    for ranks in expected:
        with tempfile.TemporaryDirectory() as folder:
            jobs = deepspeed_cases(arguments, ranks, Path(folder)) if arguments.deepspeed else cases(arguments, ranks)
            plain = {name: job.plain for name, job in jobs.items()}
            actual = run_ranks("tests.dist.plan_ranks:measure_all", ranks, plain, folder, timeout_s=3600)
            for name, job in jobs.items():
                rank = max(actual, key=lambda results: results[name]["tensors"])
                tensors, everything = rank[name]["tensors"], rank[name]["everything"]
                columns = [f"{tensors:,}", f"{everything:,}"]
                for engine, result in (
                    ("simulated", prediction_of(simulate, job.config, ranks)),
                    ("closed form", prediction_of(closed_form, job.config, ranks)),
                ):
                    if result is None:
                        columns += ["-", "-"]
                        continue
                    error = result.memory.peak_bytes / tensors - 1
                    columns += [f"{result.memory.peak_bytes:,}", f"{error:+.2%}"]
                    worst[engine] = max(worst[engine], (abs(error), name))
                    if calls(result) not in [results[name]["calls"] for results in actual]:
                        wrong.append(f"{engine}, {name}: {calls(result)}, recorded {actual[0][name]['calls']}")
                print(f"| {' | '.join([*name.split('|'), *columns])} |", flush=True)
    for engine, (error, name) in worst.items():
        print(f"\nworst of {engine}: {error:.2%} ({name})")
    print("\n".join(["", *wrong]) if wrong else "\nall collectives as recorded")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(measure(parse()))
