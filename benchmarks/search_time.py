"""How long `dtk plan --search` takes for 512 ranks, and how much of it is avoided. Prints Markdown.

    python benchmarks/search_time.py                   (about a minute)
    python benchmarks/search_time.py --ranks 4096

Seconds are CPU time of this process without its imports: the less others compute on the machine, the fewer they are.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dtk.plan.compare import search  # noqa: E402
from dtk.plan.job import machine, planned_job  # noqa: E402
from dtk.plan.timing.hardware import load_hardware  # noqa: E402

MODELS = ("llama3_8b", "llama3_70b", "llama3_405b", "gpt3_175b", "mixtral_8x7b", "deepseek_v3_like")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--hardware", default="h100_sxm")
    arguments = parser.parse_args()
    ranks, hardware = arguments.ranks, load_hardware(arguments.hardware)
    print("| model | ranks | layouts | too large | left out as too slow | CPU seconds |\n|---|---|---|---|---|---|")
    for model in MODELS:
        job = planned_job([f"model={model}", "precision=bf16", f"launcher.world_size={ranks}"], None, ranks)
        begun_s = time.process_time()
        match = search(job, machine(job.config, hardware))
        took_s = time.process_time() - begun_s
        counts = f"{match.layouts:,} | {match.too_large:,} | {match.too_slow:,}"
        print(f"| {model} | {ranks:,} | {counts} | {took_s:.1f} |", flush=True)


if __name__ == "__main__":
    main()
