"""Steps that follow from epochs, and inputs that cannot be used, before any rank starts."""

from pathlib import Path

import pytest

from dtk.config.batch import settle
from dtk.config.compose import compose
from dtk.data.dataset import SyntheticDataset
from dtk.errors import DtkError
from dtk.launch.prepare import check_parts, settle_epochs

TINY = ["model=gpt2_tiny", "strategy=ddp", "data=synthetic", "data.samples=100", "data.validation_fraction=0.2"]


@pytest.mark.parametrize(("epochs", "steps"), [("1", 10), ("0.5", 5), ("1.01", 11), ("0.001", 1), ("3", 30)])
def test_epochs_become_whole_steps(epochs: str, steps: int) -> None:
    composed = settle_epochs(compose([*TINY, f"train.epochs={epochs}", "train.global_batch_size=8"]))
    assert composed.config.train.steps == composed.plain["train"]["steps"] == steps


def test_without_epochs_nothing_changes() -> None:
    composed = compose(TINY)
    assert settle_epochs(composed) is composed


def test_what_the_data_is() -> None:
    data = check_parts(settle(compose(TINY), 2).config, 2)
    assert data["name"] == "synthetic"


def test_data_counted_for_epochs_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr("dtk.launch.prepare._counted", [])  # Other tests leave theirs.
    monkeypatch.setattr("dtk.data.build.SyntheticDataset", lambda data: built.append(data) or SyntheticDataset(data))
    composed = settle(settle_epochs(compose([*TINY, "train.epochs=1"])), 2)
    for expected in (1, 2):  # Handed over once: a later point of a sweep reads what the data is by then.
        check_parts(composed.config, 2)
        assert len(built) == expected
    settle_epochs(compose([*TINY, "train.epochs=1"]))
    other = settle(compose([*TINY, "data.samples=64"]), 2)
    check_parts(other.config, 2)
    assert len(built) == 4, "data of other settings is built"


def test_data_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    typed = ["model=gpt2_tiny", "data=text", f"data.path={tmp_path}/none"]
    with pytest.raises(DtkError, match="none"):
        check_parts(settle(compose(typed), 1).config, 1)


def test_a_model_of_transformers_that_does_not_suit_its_task_is_refused_before_any_rank_starts(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    about = transformers.BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    transformers.BertLMHeadModel(about).save_pretrained(tmp_path)
    typed = ["model=hf", f"model.path={tmp_path}", "model.arguments.head=causal_lm", *TINY[1:]]
    with pytest.raises(DtkError, match="predicts the next token while it attends to it"):
        check_parts(settle(compose(typed), 1).config, 1)
