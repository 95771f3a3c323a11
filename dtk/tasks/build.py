"""Construction of a task from the `task` section of the configuration and the data."""

from dtk.config.instantiate import instantiate
from dtk.config.schema import Config
from dtk.errors import Errors
from dtk.models.pretrained import sees_the_next_token
from dtk.tasks.base import Task
from dtk.tasks.cross_entropy import Classification, ImageClassification, LanguageModeling, Vocabulary
from dtk.tasks.regression import Regression

_errors = Errors(__file__)


def build_task(config: Config, vocabulary: Vocabulary | None = None) -> Task:
    """Build the task of this configuration.

    With `task.name=auto` the data decides. `vocabulary` is how the logits' last dimension is sharded over ranks, if it
    is. DtkError if the `_target_` is not allowed, not found, not a Task or does not accept its arguments, or it cannot
    handle logits that are sharded over ranks; or the model of transformers is one of masked tokens.
    """
    task = config.task
    if task._target_ is not None:
        custom: Task = instantiate(task._target_, task.arguments, config.allow_targets, Task)
        if config.parallel.pp > 1:
            own_forward = type(custom).forward is not Task.forward
            _errors.refuse({"forward": own_forward, "collected": custom.collected()}, c=config)
        divided = {"tp": "" if config.model.architecture == "encoder" else "the vocabulary", "cp": "each sequence"}
        for degree, what in divided.items():
            ranks = getattr(config.parallel, degree)
            _errors.refuse({"parts": what and ranks > 1}, c=config, degree=degree, ranks=ranks, what=what)
        return custom
    if task.name == "regression":
        return Regression()
    if task.name == "image_classification":
        return ImageClassification()
    classifies = task.name == "classification" or (task.name == "auto" and config.data.name == "classification")
    if classifies:
        return Classification()
    _errors.refuse({"masked_tokens": sees_the_next_token(config.model)}, c=config)
    return LanguageModeling(vocabulary)
