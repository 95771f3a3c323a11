"""`dtk rerun RUN`: the short form of `dtk run --rerun RUN`, including its check of the recorded code."""

import argparse

from dtk.extras import require_training


def run(arguments: argparse.Namespace) -> int:
    """Run `dtk run` with these arguments; DtkError if the training extra is not installed."""
    require_training("dtk rerun needs")
    from dtk.run import run as train

    return train(arguments)
