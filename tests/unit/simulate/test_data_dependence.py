"""The simulated engine and models of the user's own: those that run, and what is said of those that do not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtk.errors import DtkError
from dtk.plan.job import planned_job
from dtk.plan.simulated.engine import simulate

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = "tests.unit.simulate.test_data_dependence"


class Reads(nn.Module):
    """Branches on a value."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 8)
        self.head = nn.Linear(8, 256)

    def forward(self, tokens):
        x = self.table(tokens)
        if x.sum().item() > 0:
            x = -x
        return self.head(x)


class Misses(Reads):
    """A mistake of its own."""

    def forward(self, tokens):
        return self.head(self.table(tokens).flatten(1))


class Turns(Reads):
    """Continues in numpy."""

    def forward(self, tokens):
        x = self.table(tokens)
        return self.head(torch.from_numpy(x.detach().numpy()))


class Lists(Reads):
    """As above, by way of a library."""

    def forward(self, tokens):
        x = self.table(tokens)
        return self.head(torch.tensor(np.asarray(x.detach())))


class Leaves(Reads):
    """Ends the process as if all was well."""

    def forward(self, tokens):
        raise SystemExit(0)


class Stops(Reads):
    """Raises what is no Exception."""

    def forward(self, tokens):
        raise GeneratorExit


class Decodes(Reads):
    """A mistake that shows in a library."""

    def forward(self, tokens):
        return json.loads("{")


class Names(Reads):
    """An answer that is no tensor and holds no logits."""

    def forward(self, tokens):
        return {"scores": self.head(self.table(tokens))}


class Wraps(Reads):
    """Logits by name, as transformers' models return them."""

    def forward(self, tokens):
        return {"logits": self.head(self.table(tokens))}


class Fine(Reads):
    """Blocks of its own, and a constant made from a number."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, tokens):
        x = self.table(tokens) * torch.tensor(0.5)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Idle(Fine):
    """A layer that the answer does not need."""

    def forward(self, tokens):
        return self.head(self.table(tokens))


def custom(name, strategy, ranks=4, *overrides):
    return planned_job(
        [
            "model=custom",
            f"model._target_={HERE}.{name}",
            f"model.name={name}",
            f"allow_targets=[{HERE}.*]",
            "data=synthetic",
            "data.sequence_length=16",
            f"strategy={strategy}",
            *overrides,
        ],
        None,
        ranks,
    ).config


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_own_models(strategy):
    prediction = simulate(custom("Fine", strategy), 4)
    assert prediction.parameters == 256 * 8 + 8 * 256 + 256 + 3 * 72
    assert prediction.memory.at_peak_bytes["activations"] > 0
    if strategy == "fsdp":
        assert next(transfer.count for transfer in prediction.traffic if transfer.op == "all_gather") == 7


BAD = {
    "Reads": ("needs the values of a tensor at", "if x.sum().item() > 0:"),
    "Turns": ("needs the values of a tensor at", "torch.from_numpy(x"),
    "Lists": ("needs the values of a tensor at", "np.asarray(x"),
    "Misses": ("fails at", ".flatten(1))"),
    "Leaves": ("fails at", "raise SystemExit(0)"),
    "Stops": ("fails at", "raise GeneratorExit"),
    "Decodes": ("fails at", 'json.loads("{")'),
}


@pytest.mark.parametrize("name", BAD)
def test_models_that_cannot_be_simulated(name):
    with pytest.raises(DtkError) as error:
        simulate(custom(name, "fsdp"), 4)
    says, mark = BAD[name]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, 1) if mark in line)
    assert f"{says} {__file__}:{number}" in str(error.value)
    assert "\n" not in str(error.value) and "closed form" not in str(error.value)
    assert not dist.is_initialized()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_answer_that_is_no_tensor(strategy):
    assert simulate(custom("Wraps", strategy), 4).memory.at_peak_bytes["activations"] > 0
    with pytest.raises(DtkError, match=r"returns a dict from forward at .*test_data_dependence\.py:\d+"):
        simulate(custom("Names", strategy), 4)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_parameters_without_a_gradient_are_named(strategy):
    with pytest.raises(
        DtkError, match=r"no gradient for blocks\.0\.weight, blocks\.0\.bias, .* and 2 more.*find_unused"
    ):
        simulate(custom("Idle", strategy), 4)
    assert simulate(custom("Idle", strategy, 4, "strategy.find_unused_parameters=true"), 4).parameters
    assert simulate(custom("Idle", "fsdp"), 4).parameters


def test_ctrl_c_stays_what_it_is(monkeypatch):
    def interrupted(self, tokens):
        raise KeyboardInterrupt

    monkeypatch.setattr(Fine, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate(custom("Fine", "ddp"), 4)


def test_another_width_than_the_vocabulary_is_said():
    text = "the model returns 256 logits per token, but data.vocab_size=100"
    assert text in simulate(custom("Fine", "ddp", 4, "data.vocab_size=100"), 4).notes
    assert not any("logits" in note for note in simulate(custom("Fine", "ddp", 4, "data.vocab_size=256"), 4).notes)


class Views(Fine):
    """FSDP2 warns of what it returns."""

    def forward(self, tokens):
        return super().forward(tokens).view(*tokens.shape, -1)


@pytest.mark.filterwarnings("error:FSDP2")
def test_warnings_for_the_run_stay_there():
    assert simulate(custom("Views", "fsdp"), 4).memory.peak_bytes
