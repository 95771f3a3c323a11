"""Real small trainings that waste memory in known ways: what is found, in bytes, and what 64 ranks would need.

python benchmarks/memory_cases.py        (half a minute on two cores)
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diagnostics.contract.findings import Finding, text_of
from diagnostics.contract.formatting import bytes_text
from tests.dist.memory_ranks import CASES
from tests.dist.ranks import run_ranks
from tests.unit.diagnostics.causes.memory.jobs import findings

RANKS = 2
_FUTURE = re.compile(r"on 64 ranks a rank would need ([\d.]+ \w+), without it ([\d.]+ \w+)")


def row(case: str, finding: Finding | None) -> str:
    """One Markdown row."""
    if finding is None:
        return f"| {case} | none | - | - | - |"
    future = _FUTURE.search(text_of(finding).summary)
    needs, without = future.groups() if future else ("-", "-")
    cost = bytes_text(finding.cost.value) if finding.cost else "-"
    return f"| {case} | `{finding.cause}` | {cost} | {needs} | {without} |"


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"| case, {RANKS} ranks | found | bytes | a rank at 64 ranks | without it |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        run_ranks("tests.dist.memory_ranks:train", RANKS, folder)
        for case in CASES:
            result = [item for item in findings(Path(folder) / case).values() if item.status == "confirmed"]
            for finding in result or [None]:
                print(row(case, finding), flush=True)


if __name__ == "__main__":
    main()
