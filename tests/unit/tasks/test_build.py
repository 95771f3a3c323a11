"""`task=` by name, by the data, or by import path."""

import json
from pathlib import Path

import pytest

from dtk.config.compose import compose
from dtk.errors import DtkError
from dtk.tasks.base import Task
from dtk.tasks.build import build_task
from dtk.tasks.cross_entropy import Classification, ImageClassification, LanguageModeling
from dtk.tasks.regression import Regression

OWN = ["task._target_=tests.dist.own_task.Relative"]
ALLOW = ["allow_targets=[tests.*]"]


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ([], LanguageModeling),
        (["data=classification", "model=bert_tiny"], Classification),
        (["task=image_classification"], ImageClassification),
        (["task=regression"], Regression),
    ],
)
def test_by_name_and_by_data(overrides: list[str], kind: type[Task]) -> None:
    assert type(build_task(compose(overrides).config)) is kind


@pytest.mark.parametrize(("head", "refused"), [("auto", True), ("masked_lm", True), ("causal_lm", False)])
def test_a_model_of_masked_tokens_is_not_trained_on_the_next_token(head: str, refused: bool, tmp_path: Path) -> None:
    about = {"architectures": ["BertForMaskedLM"], "max_position_embeddings": 64, "vocab_size": 257}
    (tmp_path / "config.json").write_text(json.dumps(about))
    model = ["model=hf", f"model.path={tmp_path}", f"+model.arguments.head={head}"]
    config = compose([*model, "data.sequence_length=32"]).config
    if refused:
        with pytest.raises(DtkError, match="predicts masked tokens, and task=language_modeling the next token"):
            build_task(config)
    else:
        assert type(build_task(config)) is LanguageModeling
    assert type(build_task(compose([*model, "data=classification"]).config)) is Classification


def test_ones_own_needs_to_be_allowed_and_a_task() -> None:
    assert build_task(compose([*OWN, *ALLOW]).config).metric_names == ("positive",)
    with pytest.raises(DtkError, match="is not allowed"):
        build_task(compose(OWN).config)
    with pytest.raises(DtkError, match=r"not a dtk\.tasks\.base\.Task"):
        build_task(compose(["task._target_=tests.dist.own_task.Line", *ALLOW]).config)


class OwnForward(Regression):
    def forward(self, model: object, inputs: object) -> object:
        return inputs


def test_stages_are_not_called_by_a_forward_of_ones_own() -> None:
    own = f"task._target_={__name__}.OwnForward"
    assert build_task(compose([own, *ALLOW]).config).metric_names == ("mean_absolute_error",)
    with pytest.raises(DtkError, match=r"overrides forward, and parallel\.pp=2"):
        build_task(compose([own, *ALLOW, "parallel.pp=2"]).config)


def test_logits_that_are_cut_need_a_task_that_knows_it() -> None:
    with pytest.raises(DtkError, match=r"is incompatible with parallel\.tp"):
        build_task(compose([*OWN, *ALLOW, "parallel.tp=2"]).config)
    with pytest.raises(DtkError, match=r"is incompatible with parallel\.cp=2: each rank has the logits of a part"):
        build_task(compose([*OWN, *ALLOW, "parallel.cp=2"]).config)
