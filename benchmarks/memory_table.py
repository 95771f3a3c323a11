"""Bytes of model states per parameter, measured in whole runs, beside the table of `dtk plan --memory-table`. Markdown.

    python benchmarks/memory_table.py [MODEL [FIRST_ROW]]

Runs of 2 ranks on the CPU with AdamW. Before the update of the last step, when a backward has freed its activations, a
rank counts the memory of every tensor of floating numbers that is alive: weights, gradients, master weights, moments,
and whatever else the strategy or its library keeps. Both ranks together, as zero1 cuts unevenly, over the parameters.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from dtk.plan.formulas.holding import TRAININGS
from dtk.train.callbacks import Callback

RANKS = 2
ROWS = [
    ("ddp", "fp32", "fp32", 0),
    ("ddp", "bf16", "fp32", 0),
    ("zero1", "fp32", "fp32", 1),
    ("zero1", "bf16", "fp32", 1),
    ("zero2", "bf16", "fp32", 3),
    ("fsdp", "fp32", "fp32", 3),
    ("fsdp", "bf16", "fp32", 3),
    ("deepspeed_zero1", "fp32", "fp32", 1),
    ("deepspeed_zero1", "bf16", "bf16 mixed", 1),
    ("deepspeed_zero2", "bf16", "bf16 mixed", 2),
    ("deepspeed_zero3", "bf16", "bf16 mixed", 3),
]
"""Strategy, precision, and the row and stage of the table: zero2 keeps whole parameters only inside a step."""
STEPS = 3


class States(Callback):
    """Writes how many bytes of tensors a rank holds before its last update."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def before_update(self, training: Any, step: int) -> None:
        """Count every memory once, however many tensors see it."""
        if step != STEPS:
            return
        gc.unfreeze()  # A run freezes what it has set up, and frozen objects are not listed.
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        tensors += [each.grad for each in tensors if each.is_leaf and each.grad is not None]
        local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
        kept = {
            each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
            for each in local
            if each.is_floating_point() and each.device.type == "cpu"
        }
        (self.folder / f"{training.context.rank}.json").write_text(json.dumps(sum(kept.values())))


def measured(strategy: str, precision: str, model: str) -> float:
    """Return bytes per parameter of a rank, the mean of all."""
    with tempfile.TemporaryDirectory() as folder:
        job = [f"strategy={strategy}", f"precision={precision}", f"model={model}", f"launcher.nproc={RANKS}"]
        job += ["data=synthetic", f"train.steps={STEPS}", "checkpoint=off", "train.evaluate_every=-1", "record=light"]
        job += ["launcher.device=cpu", "launcher.threads=1", f"runs_folder={folder}/runs", "data.sequence_length=16"]
        job += [f"callbacks=[{{_target_: memory_table.States, arguments: {{folder: {folder}}}}}]"]
        if strategy.startswith("deepspeed"):  # Its default buffers are thousands of times such a model.
            sizes = dict.fromkeys(("reduce_bucket_size", "stage3_prefetch_bucket_size"), 65536)
            sizes["stage3_param_persistence_threshold"] = 0  # Below it, as all of these are, parameters stay whole.
            Path(folder, "ds.json").write_text(json.dumps({"zero_optimization": sizes}))
            job.append(f"strategy.config={folder}/ds.json")
        command = [sys.executable, "-m", "dtk.run", *job, "allow_targets=[memory_table.*]"]
        subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, timeout=600)
        (summary,) = Path(folder, "runs").glob("*/summary.json")
        parameters = json.loads(summary.read_text())["figures"]["parameters"]
        return sum(json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)) / parameters / RANKS


def main() -> None:
    """Print a row for each strategy and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="gpt2_tiny", metavar="MODEL")
    parser.add_argument("first_row", type=int, nargs="?", default=0, metavar="FIRST_ROW")
    arguments = parser.parse_args()
    table = {training.name: training for training in TRAININGS}
    print("| strategy | precision | row of the table | stage | table | measured |\n" + "|---" * 6 + "|")
    for strategy, precision, row, stage in ROWS[arguments.first_row :]:
        planned, result = table[row].rank_bytes(1, stage, RANKS), measured(strategy, precision, arguments.model)
        print(f"| {strategy} | {precision} | {row} | {stage} | {planned:g} | {result:.2f} |", flush=True)


if __name__ == "__main__":
    main()
