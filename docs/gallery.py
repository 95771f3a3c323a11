"""Write docs/gallery.md, diagnoses of faults that are run on this machine: python docs/gallery.py (two minutes)."""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

FAULTS = {
    "extra_collective": "One rank calls a collective that the others do not.",
    "uneven_batches": "One rank has fewer batches than the others.",
    "sigkill": "A rank is killed in the middle of a step.",
    "full_gather": "A unit of FSDP gathers the whole model.",
    "one_bucket": "DDP reduces all gradients in one bucket, after the backward pass.",
    "nan_on_one_rank": "The gradients of one rank become NaN.",
}
"""Fault -> what happens."""
ROOT = f"{Path(__file__).parents[1]}/"
GAP = " " * len(ROOT)
HEAD = """\
# Gallery of diagnoses
The output of `dtk diagnose` for real faults: `python docs/gallery.py` ran each of them with two or four ranks on a CPU
and generated this page. `dtk run --help fault` lists all faults.
"""
WIDTH = 96  # Characters that fit the page; the columns of the ranks side by side are left as they are.


def folded(line: str) -> str:
    """Wrap a long line as a terminal shows it: the label once, and what it says in a column of its own."""
    label, text = line[:8], line[8:]
    if len(line) <= WIDTH or not label.endswith(" ") or "  " in text:
        return line
    wrap = textwrap.TextWrapper(WIDTH, label, " " * 8, break_long_words=False, break_on_hyphens=False)
    return wrap.fill(text)


def render() -> str:
    """Run each fault and return the page."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "110"}
    text = HEAD
    with tempfile.TemporaryDirectory() as folder:
        for fault, title in FAULTS.items():
            words = ["run", f"fault={fault}"]
            subprocess.run([sys.executable, "-m", "dtk", *words], cwd=folder, env=environment, capture_output=True)
            command = [sys.executable, "-m", "dtk", "diagnose", "last"]
            report = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout
            # Paths without the folder of the repository; in two columns the second one stays where it is.
            report = re.sub(
                rf"{re.escape(ROOT)}(\S+ in \S+(?: {{2,}})?)", lambda m: m[1] + GAP * m[1].endswith("  "), report
            )
            report = report.replace(ROOT, "").replace(sys.executable + " -m dtk", "dtk")
            report = "\n".join(map(folded, report.splitlines()))
            text += f"\n## {title}\n`dtk run fault={fault}`\n```\n{report.rstrip()}\n```\n"
            print(f"{fault}: {report.partition(chr(10))[0]}", flush=True)
    return text


if __name__ == "__main__":
    Path(__file__).with_name("gallery.md").write_text(render())
