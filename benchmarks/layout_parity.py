"""Loss of each layout beside `single` over 20 steps, and after step 10 continued on one process. Prints a table.

    python benchmarks/layout_parity.py [--ranks 2,4,8] [--model gpt2_tiny | moe_tiny]

All steps under the layout; then ten of them, whose checkpoint one process resumes; on gloo, in float32. The differences
are relative, the largest over the steps. The layouts are those of `tests/dist/layouts.py`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.dist.layouts import EXPERTS, LAYOUTS, differences  # noqa: E402

LENGTH = 64
"""Tokens of a sample."""


def main() -> None:
    """Train every layout and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("gpt2_tiny", "moe_tiny"), default="gpt2_tiny")
    parser.add_argument("--ranks", default="2,4,8")
    arguments = parser.parse_args()
    layouts = EXPERTS if arguments.model == "moe_tiny" else LAYOUTS
    print("| layout | ranks | largest difference over 20 steps | the same, from step 10 on one process |")
    print("|---|---|---|---|")
    for ranks in map(int, arguments.ranks.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            result = differences(arguments.model, LENGTH, ranks, layouts[ranks], Path(folder))
        for name, (whole, resumed) in result.items():
            print(f"| {name} | {ranks} | {whole:.1e} | {resumed:.1e} |", flush=True)


if __name__ == "__main__":
    main()
