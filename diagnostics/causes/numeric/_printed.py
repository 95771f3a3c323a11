"""What the causes that are decided from printed steps share."""

from diagnostics.analysis.printed_steps import PrintedSteps
from diagnostics.contract.findings import Finding, ruled_out, undecided


def not_to_the_end(cause: str, job: PrintedSteps, sentence: str) -> Finding:
    """Return that the printed steps show nothing of a cause; without such steps it is open.

    Args:
        cause: its id.
        job: the printed steps.
        sentence: with `{count}` for their number.
    """
    if job.count:
        return ruled_out(cause, sentence, count=job.count)
    return undecided(cause, sentence, "the trainer's log, or its records of steps", count=0)
