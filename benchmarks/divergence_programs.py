"""Which edit is found in random programs with one planted edit: of 10,000, what is right, equal and wrong.

python benchmarks/divergence_programs.py [NUMBER]

`equal`: another edit that explains every recorded call as well, as a round of one call less and that call left out.
`blocked`: each rank stops at its first call that does not fit, so that nothing after it is recorded.
"""

import argparse
import random
from collections import Counter

from tests.unit.diagnostics.analysis.divergence.programs import PLANTED, judge, plant

VERDICTS = ("right", "equal", "nothing to see")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, nargs="?", default=10_000, metavar="NUMBER")
    number = parser.parse_args().number
    counts: Counter[tuple[str, bool, str]] = Counter()
    wrong: list[str] = []
    seed = cases = 0
    while cases < number:
        case = plant(random.Random(seed))
        seed += 1
        if case is None:
            continue
        cases += 1
        verdict = judge(case)
        if verdict not in VERDICTS:
            wrong.append(f"program {seed - 1}, {case.planted}, {'blocked' if case.blocked else 'whole'}: {verdict}")
            verdict = "wrong"
        counts[case.planted, case.blocked, verdict] += 1
    print("| planted | recorded | right | equal | nothing to see | wrong |\n|---|---|---|---|---|---|")
    for planted in PLANTED:
        for blocked in (False, True):
            row = " | ".join(str(counts[planted, blocked, verdict]) for verdict in (*VERDICTS, "wrong"))
            print(f"| {planted} | {'blocked' if blocked else 'whole'} | {row} |")
    print("\n".join(["", f"{cases} programs, {len(wrong)} wrong", *wrong[:20]]))


if __name__ == "__main__":
    main()
