"""An optimizer by its import path: refused where cutting parameters over ranks would change what it does."""

from pathlib import Path

import pytest
import torch
from torch import nn

from dtk.config.compose import compose
from dtk.errors import DtkError
from dtk.train.optimizer import ELEMENTWISE, check_optimizer, parameter_groups, recipe


def config(target: str, *more: str):
    return compose(["optimizer=custom", f"optimizer._target_={target}", *more]).config


def test_it_is_built_with_its_arguments() -> None:
    section = config("torch.optim.RMSprop", "optimizer.lr=0.5", "+optimizer.arguments.alpha=0.5").optimizer
    model = nn.Linear(2, 2)
    built = recipe(section, model.parameters(), [])(parameter_groups(model, 0.1))
    assert isinstance(built, torch.optim.RMSprop)
    assert [(group["lr"], group["alpha"], group["weight_decay"]) for group in built.param_groups] == [
        (0.5, 0.5, 0.1),
        (0.5, 0.5, 0.0),
    ]


@pytest.mark.parametrize("cls", sorted(ELEMENTWISE, key=lambda cls: cls.__name__))
def test_those_called_elementwise_are(cls: type[torch.optim.Optimizer]) -> None:
    """Three steps on a matrix are, bit for bit, three steps on its rows."""
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(4, 3))
    rows = [nn.Parameter(row.clone()) for row in whole.detach()]
    optimizers = cls([whole], lr=0.1), cls(rows, lr=0.1)
    for _ in range(3):
        whole.grad = torch.randn(4, 3)
        for row, gradient in zip(rows, whole.grad, strict=True):
            row.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(whole.detach(), torch.stack([row.detach() for row in rows]))


@pytest.mark.parametrize(
    ("target", "more", "text"),
    [
        ("torch.optim.Adafactor", ["strategy=fsdp"], "strategy=fsdp gives each rank a part"),
        ("torch.optim.Adafactor", ["strategy=ddp", "parallel.tp=2"], "parallel.tp=2 gives each rank a part"),
        ("torch.optim.LBFGS", ["strategy=ddp"], "runs the model again"),
        ("torch.nn.Linear", ["strategy=ddp"], "is not a torch.optim"),
        ("torch.optim.Adamm", ["strategy=ddp"], "Adam"),
    ],
)
def test_what_cannot_be_right_is_refused(target: str, more: list[str], text: str) -> None:
    with pytest.raises(DtkError, match=text):
        check_optimizer(config(target, *more), 2)


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("torch.optim.Adafactor", ["strategy=ddp"]),
        ("torch.optim.Adafactor", ["strategy=zero1"]),
        ("torch.optim.Adafactor", ["strategy=fsdp", "optimizer.elementwise=true"]),
        ("torch.optim.NAdam", ["strategy=fsdp"]),
    ],
)
def test_what_is_right_is_not(target: str, more: list[str]) -> None:
    check_optimizer(config(target, *more), 2)


def test_muon_of_the_page_makes_the_singular_values_equal_and_learns():
    page = (Path(__file__).parents[3] / "docs" / "own_experiment.md").read_text()
    result: dict = {}
    exec(next(block.split("```")[0] for block in page.split("```python\n") if "class Muon" in block), result)
    torch.manual_seed(0)
    values = torch.linalg.svdvals(result["Muon"].direction(torch.randn(8, 16)))
    assert values.min() > 0.5 and values.max() < 1.5
    layer, x = torch.nn.Linear(8, 4), torch.randn(64, 8)
    y = x @ torch.randn(8, 4)
    optimizer = result["Muon"](parameter_groups(layer, 0.1), lr=0.05)
    losses = []
    for _ in range(60):
        loss = (layer(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
