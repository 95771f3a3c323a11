"""`dtk trace RUN`: writes one timeline of all ranks for Perfetto. Never imports torch."""

import argparse
from pathlib import Path

from diagnostics.contract.formatting import counted
from dtk.console import output
from dtk.console.progress import Busy
from dtk.runs.find import find

TRACE = Path("dtk-trace.json.gz")
VALUES = {"trace": TRACE}


def run(arguments: argparse.Namespace) -> int:
    """Write the trace and print a summary; DtkError if there is no run or event, or the file cannot be written."""
    from dtk.runs.trace import Merge

    merge = Merge(find(arguments.run))
    with Busy("reading"):
        merge.write(arguments.out)
    for problem in merge.problems:
        output.put(f"problem  {problem}\n")
    flows = sum(earliest != latest for _, earliest, _, latest in merge.flows.values())
    output.put(
        f"{arguments.out}: {counted(len(merge.ranks), 'rank')}, {counted(merge.events, 'event')}, "
        f"{counted(flows, 'collective')} linked across ranks\n"
        "open it at https://ui.perfetto.dev, which reads it in the browser\n"
    )
    return 0
