"""`python -m dtk.doctor.rank ...`: one rank of the collectives. Says that it lives before it imports torch."""

import argparse
import json
import os
import sys
from typing import Any

from dtk.orphan import end_with


def say(record: dict[str, Any]) -> None:
    """One line for the parent."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("rank", "world-size", "local-rank", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("host", "prefix", "backend"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    parser.add_argument("--serve", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_with(os.getppid())
    try:
        arguments = _parse(sys.argv[1:])
        say({"begin": "importing torch"})
        from dtk.doctor.collective_ranks import main

        code = main(arguments, say)
    except Exception as error:  # The parent shows the line; the whole trace goes to standard error.
        say({"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"})
        raise
    sys.stdout.flush()
    os._exit(code)  # Threads of the back-end may abort the process while the interpreter is torn down.
