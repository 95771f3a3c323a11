"""Loss of each layout beside `single` over 20 steps, and after step 10 continued on one process. Prints a table.

    python benchmarks/layout_parity.py [--model llama_tiny | moe_tiny]

Every row is two runs of `dtk run` on gloo in float32: all steps under the layout; then ten of them, whose checkpoint
one process resumes. The differences are relative, the largest over the steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS, HALF = 20, 10
LAYOUTS = {
    "ddp": (2, ["strategy=ddp"]),
    "fsdp": (2, ["strategy=fsdp"]),
    "ddp, tp 2": (2, ["strategy=tp"]),
    "fsdp, tp 2": (2, ["strategy=fsdp", "parallel.tp=2"]),
    "fsdp, dp 2 x tp 2": (4, ["strategy=fsdp", "parallel.tp=2"]),
    "ddp, tp 4": (4, ["strategy=tp", "parallel.tp=4"]),
    "ddp, ring 2": (2, ["strategy=ddp", "parallel.cp=2"]),
    "zero1, ulysses 2": (2, ["strategy=zero1", "parallel.cp=2", "parallel.context=ulysses"]),
    "fsdp, ulysses 2": (2, ["strategy=ulysses"]),
    "fsdp, ring 4": (4, ["strategy=ring", "parallel.cp=4"]),
    "fsdp, dp 2 x ulysses 2": (4, ["strategy=ulysses"]),
    "fsdp, ring 2 x tp 2": (4, ["strategy=ring", "parallel.tp=2"]),
    "ddp, pp 2 x ring 2": (4, ["strategy=ddp", "parallel.pp=2", "parallel.cp=2", "train.micro_batch_size=2"]),
}
"""Name -> ranks and overrides."""
EXPERTS = {
    "ddp": (2, ["strategy=ddp"]),
    "ddp, ep 2": (2, ["strategy=ddp", "parallel.ep=2"]),
    "fsdp, ep 2": (2, ["strategy=moe"]),
    "fsdp, dp 4, ep 2": (4, ["strategy=moe"]),
    "zero2, ep 4": (4, ["strategy=zero2", "parallel.ep=4"]),
}
"""Of a model with experts."""
JOB = [
    *(
        "data.tokenizer=byte",
        "data.sequence_length=64",
        "schedule=constant",
        "optimizer.lr=0.001",
        "watch.enabled=false",
    ),
    *("train.global_batch_size=8", "train.evaluate_every=-1", "launcher.device=cpu", "launcher.backend=gloo"),
]


def losses(folder: Path, overrides: list[str], steps: int) -> list[float]:
    """Train in `folder`, or go on there, and return the loss of every step."""
    known = sorted(folder.glob("*/metrics.jsonl"))
    job = [f"resume={known[0].parent}"] if known else [*JOB, f"runs_folder={folder}"]
    command = [sys.executable, "-m", "dtk.run", *job, f"train.steps={steps}", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in next(folder.glob("*/metrics.jsonl")).read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def difference(found: list[float], expected: list[float]) -> float:
    """Largest relative difference."""
    assert len(found) == len(expected) == STEPS
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def main() -> None:
    """Train every layout and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2_tiny")
    name = parser.parse_args().model
    model, layouts = f"model={name}", EXPERTS if name.startswith("moe") else LAYOUTS
    one = ["strategy=single", "parallel=default", "launcher.nproc=1"]
    with tempfile.TemporaryDirectory() as temporary:
        single = losses(Path(temporary, "single"), [model, *one, "checkpoint=off"], STEPS)
        print("| layout | ranks | largest difference over 20 steps | the same, from step 10 on one process |")
        print("|---|---|---|---|")
        for number, (name, (ranks, typed)) in enumerate(layouts.items()):
            layout = [*typed, f"launcher.nproc={ranks}"]
            whole = losses(Path(temporary, f"{number}_whole"), [model, *layout, "checkpoint=off"], STEPS)
            losses(Path(temporary, str(number)), [model, *layout], HALF)
            resumed = losses(Path(temporary, str(number)), one, STEPS)
            found = [f"{difference(values, single):.1e}" for values in (whole, resumed)]
            print(f"| {name} | {ranks} | {found[0]} | {found[1]} |", flush=True)


if __name__ == "__main__":
    main()
