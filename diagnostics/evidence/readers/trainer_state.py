"""`trainer_state.json` of Hugging Face's Trainer: the steps that it logged, for jobs whose output is lost.

Source: TrainerState in transformers/trainer_callback.py.
"""

from diagnostics.evidence.limits import small_json
from diagnostics.evidence.logs.steps import MAX_POINTS, Series, Steps
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.reader import Contents, Reader, Source

KIND = "trainer_steps"
_NAN = float("nan")


def read(source: Source) -> Contents:
    """Read one file; return its steps in the form of a log's. Lines are numbers of entries in `log_history`, from 1.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is too large, or not a state of the Trainer.
    """
    series = Series()
    try:
        for number, entry in enumerate(small_json(source.path, source.limits)["log_history"][:MAX_POINTS], 1):
            if "loss" in entry:  # Other entries are of evaluations, and the last one is a summary.
                series.lines.append(number)
                for name, key in (("step", "step"), ("loss", "loss"), ("norm", "grad_norm")):
                    getattr(series, name).append(float(_NAN if entry.get(key) is None else entry[key]))
                series.scale.append(_NAN)
                series.skipped.append(_NAN)
                series.printed.append(3 if entry.get("grad_norm") is not None else 1)
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise ValueError("not a Trainer state") from problem
    steps = Steps({"Hugging Face Trainer": series})
    return Contents(source.file, facts=[LogFact(KIND, None, source.file, 0, "", {"steps": steps})] if steps else [])


READER = Reader(
    kind="trainer_state",
    title="states of Hugging Face's Trainer",
    recognise=lambda head: head.lstrip().startswith(b"{") and b'"log_history"' in head and b'"global_step"' in head,
    open=read,
    facts=(KIND,),
)
