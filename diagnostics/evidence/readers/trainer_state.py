"""`trainer_state.json` of Hugging Face's Trainer: the steps that it logged, for jobs whose output is lost.

Source: TrainerState in transformers/trainer_callback.py.
"""

from diagnostics.evidence.limits import small_json
from diagnostics.evidence.logs.steps import MAX_POINTS, Series, Steps
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.readers.step_records import take

KIND = "trainer_steps"


def read(source: Source) -> Contents:
    """Return the steps of a file in the form of a log's. Lines are numbers of entries in `log_history`, from 1."""
    series = Series()
    try:
        for number, entry in enumerate(small_json(source.path, source.limits)["log_history"][:MAX_POINTS], 1):
            if "loss" in entry:  # Other entries are of evaluations, and the last one is a summary.
                take(series, entry, number)
    except (AttributeError, KeyError, TypeError) as problem:
        raise ValueError("not a Trainer state") from problem
    steps = Steps({"Hugging Face Trainer": series})
    return Contents(source.file, facts=[LogFact(KIND, None, source.file, 0, "", {"steps": steps})] if steps else [])


READER = Reader(
    kind="trainer_state",
    title="Hugging Face Trainer states",
    recognise=lambda head: head.lstrip().startswith(b"{") and b'"log_history"' in head and b'"global_step"' in head,
    open=read,
    facts=(KIND,),
)
