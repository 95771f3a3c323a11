"""Construction of a task from the `task` section of the configuration and the data."""

from dtk.config.instantiate import instantiate
from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.models.pretrained import sees_the_next_token
from dtk.tasks.base import Task
from dtk.tasks.cross_entropy import Classification, ImageClassification, LanguageModeling, Vocabulary
from dtk.tasks.regression import Regression


def build_task(config: Config, vocabulary: Vocabulary | None = None) -> Task:
    """Build the task of this configuration.

    With `task.name=auto` the data decides. `vocabulary` is how the logits' last dimension is sharded over ranks, if it
    is.

    Raises:
        DtkError: the `_target_` is not allowed, not found, not a Task or does not accept its arguments, or it cannot
            handle logits that are sharded over ranks; or the model of transformers is one of masked tokens.
    """
    task = config.task
    if task._target_ is not None:
        custom: Task = instantiate(task._target_, task.arguments, config.allow_targets, Task)
        if config.parallel.pp > 1 and type(custom).forward is not Task.forward:
            what = f"task._target_={task._target_} overrides forward, and parallel.pp={config.parallel.pp}"
            raise DtkError(what, "stages of the model are called one by one", "use parallel.pp=1, or leave forward out")
        if config.parallel.pp > 1 and custom.collected():
            what = f"task._target_={task._target_} has metrics by collected, and parallel.pp={config.parallel.pp}"
            raise DtkError(what, "only the last stage sees the model's output", "use parallel.pp=1, or metrics")
        divided = {"tp": "" if config.model.architecture == "encoder" else "the vocabulary", "cp": "each sequence"}
        for degree, what in divided.items():
            ranks = getattr(config.parallel, degree)
            if what and ranks > 1:
                clash = f"task._target_={task._target_} is incompatible with parallel.{degree}={ranks}"
                why = f"each rank has the logits of a part of {what} only"
                raise DtkError(clash, why, f"use parallel.{degree}=1, or task=language_modeling")
        return custom
    if task.name == "regression":
        return Regression()
    if task.name == "image_classification":
        return ImageClassification()
    classifies = task.name == "classification" or (task.name == "auto" and config.data.name == "classification")
    if classifies:
        return Classification()
    if sees_the_next_token(config.model):
        what = f"model.path={config.model.path} predicts masked tokens, and task=language_modeling the next token"
        fix = "use model.arguments.head=sequence_classification with data=classification, or your own task"
        raise DtkError(what, "it attends to the token that it should predict", fix)
    return LanguageModeling(vocabulary)
