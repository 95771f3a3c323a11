"""Every fault that is code is entered under the name of its YAML file, and goes wrong at its step on its rank only."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dtk.faults.base import FAULTS
from dtk.faults.install import install
from dtk.train.callbacks import Callback, Training
from dtk.train.loop import Loop
from tests.unit.train.conftest import Build, alone, build, config  # noqa: F401

CONF = Path(__file__).parents[3] / "conf" / "fault"


def test_faults_are_those_of_the_configuration() -> None:
    names = {path.stem for path in CONF.glob("*.yaml")} - {"none"}
    assert set(FAULTS) <= names
    for name in FAULTS:
        source = Path(__import__(FAULTS[name].__module__, fromlist=["_"]).__file__ or "").read_text()
        assert source.count(f"# fault: {name}\n") == 1, "the offending line is marked"


Faulty = Callable[..., Any]


@pytest.fixture
def faulty(build: Build) -> Faulty:  # noqa: F811
    def make(name: str, step: int = 2, rank: int = 0) -> Loop:
        loop = build(config())
        loop.config = SimpleNamespace(  # type: ignore[assignment]
            **{field: getattr(loop.config, field) for field in loop.config.__dataclass_fields__}
            | {"fault": SimpleNamespace(name=name, step=step, rank=rank, delay_s=0.0)}
        )
        return install(loop)

    return make


def test_a_fault_of_settings_leaves_the_loop_as_it_is(faulty: Faulty) -> None:
    loop = faulty("none")
    assert type(loop) is Loop and loop.run()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_strikes_one_step_of_one_rank(faulty: Faulty, rank: int) -> None:
    loop = faulty("exception", step=3, rank=rank)
    if rank:
        assert loop.run()
        return
    with pytest.raises(ValueError, match="sample 17"):
        loop.run()
    assert loop.state.step == 2, "two steps are done"


def test_a_swallowed_exception_leaves_out_a_batch(faulty: Faulty, capsys: pytest.CaptureFixture[str]) -> None:
    loop = faulty("swallowed_exception")
    weights: list[torch.Tensor] = []

    class Watch(Callback):
        def before_step(self, training: Training, step: int) -> None:
            weights.append(training.model.get_parameter("final_norm.weight").detach().clone())

    loop.callbacks.members.append(("watch", Watch(), False))
    assert loop.run() and "skipping a bad batch" in capsys.readouterr().out
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[2], weights[3])
    assert torch.equal(weights[1], weights[2]), "the second step changed nothing"


@pytest.mark.parametrize("name", ["early_stop", "uneven_batches"])
def test_a_rank_that_ends_early(faulty: Faulty, name: str) -> None:
    loop = faulty(name, step=3)
    assert loop.run() is False and loop.state.step == 2


def test_a_leak_keeps_the_gradients_of_every_later_step(faulty: Faulty) -> None:
    loop = faulty("leak", step=2)
    assert loop.run()
    assert [len(step) for step in loop.history] == [len(list(loop.parts.model.parameters()))] * 3


def test_logits_overflow_once_in_training(faulty: Faulty) -> None:
    loop = faulty("nan_on_one_rank", step=2)
    loop.run()
    assert loop.last["step"] == 4 and not torch.isfinite(torch.tensor(loop.last["loss"])), "NaN spreads to all weights"


@pytest.mark.parametrize("name", ["straggler", "extra_collective", "other_dtype", "group_order"])
def test_alone_what_needs_others_goes_on(faulty: Faulty, name: str) -> None:
    assert faulty(name).run()


def test_memory_that_there_is_not(faulty: Faulty) -> None:
    with pytest.raises(RuntimeError, match="memory"):
        faulty("out_of_memory").run()
