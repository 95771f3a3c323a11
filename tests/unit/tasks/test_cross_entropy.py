"""The loss: what it accepts of a model's output, and what it says of anything else."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from dtk.errors import DtkError
from dtk.tasks.cross_entropy import ImageClassification, LanguageModeling, logits_of

LOGITS = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([[0, 1, -100], [4, 3, 2]])


@pytest.mark.parametrize(
    "output",
    [LOGITS, SimpleNamespace(logits=LOGITS, loss=None), {"logits": LOGITS, "loss": None}, (LOGITS, None)],
    ids=["tensor", "object", "mapping", "tuple"],
)
def test_logits_are_found_and_the_loss_is_a_sum_over_valid_targets(output):
    expected = F.cross_entropy(LOGITS.flatten(0, 1), TARGETS.flatten(), reduction="mean") * 5
    torch.testing.assert_close(LanguageModeling().loss_sum(output, TARGETS), expected)


def test_a_model_of_transformers():
    transformers = pytest.importorskip("transformers", reason="needs the extra hf (transformers)")
    sizes = {"vocab_size": 5, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    assert logits_of(model(torch.zeros(2, 3, dtype=torch.int64))).shape == (2, 3, 5)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (None, "returned NoneType without logits"),
        ({"scores": LOGITS}, "returned dict without logits"),
        ({"loss": LOGITS.sum()}, "a loss that the model computes cannot be compared between strategies"),
        (LOGITS[:, 0], r"logits are \[2, 5\], the targets \[2, 3\]"),
        (LOGITS.mean(), r"logits are \[\], the targets"),
    ],
)
def test_anything_else_is_one_line_that_speaks_of_the_model(output, says):
    with pytest.raises(DtkError, match=says) as error:
        LanguageModeling().loss_sum(output, TARGETS)
    assert "loss.py" not in str(error.value)


@pytest.mark.parametrize(("classes", "among"), [(4, (0, 0)), (5, (0, 0)), (6, (1, 2))])
def test_top5_accuracy_is_undefined_where_it_would_always_be_whole(classes: int, among: tuple[int, int]) -> None:
    logits = torch.arange(float(classes)).repeat(2, 1)  # The last five classes are the most likely ones.
    result = ImageClassification().metrics(logits, torch.tensor([0, 1]))
    assert tuple(map(int, result["top5_accuracy"])) == among and int(result["accuracy"][1]) == 2
