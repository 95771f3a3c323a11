"""Seconds from the command to the first step, and of `dtk --help`. Prints medians.

python benchmarks/startup.py
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

REPEATS = 5


def first_step_s(model: str) -> float:
    """Wall seconds until the first step line is on the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dtk.run", f"model={model}", "train.steps=1", "checkpoint=off"]
        command += ["train.evaluate_every=-1", f"runs_folder={folder}"]
        began_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        seconds = next(time.perf_counter() - began_s for line in process.stdout if line.startswith("step 1/"))
        process.communicate()
    return seconds


def command_s(*arguments: str) -> float:
    """Wall seconds of a command."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def row(name: str, seconds: list[float]) -> None:
    """One Markdown row."""
    print(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} - {max(seconds):.2f} |", flush=True)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| what | seconds (median) | range |\n|---|---|---|")
    row("`dtk --help`", [command_s("-m", "dtk", "--help") for _ in range(REPEATS)])
    row("`python -m dtk.run --help`", [command_s("-m", "dtk.run", "--help") for _ in range(REPEATS)])
    row("command to first step, gpt2_tiny, fsdp", [first_step_s("gpt2_tiny") for _ in range(REPEATS)])
    row("command to first step, gpt2, fsdp", [first_step_s("gpt2") for _ in range(REPEATS - 2)])


if __name__ == "__main__":
    main()
