"""One rank that raises, catches, is late, or asks for more than there is."""

import signal
import time

import pytest
import torch

from dtk.train.callbacks import Callback, Training
from tests.unit.faults.conftest import Faulty


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_strikes_one_step_of_one_rank(faulty: Faulty, rank: int) -> None:
    loop = faulty("exception", step=3, rank=rank)
    if rank:
        assert loop.run()
        return
    with pytest.raises(ValueError, match="sample 17"):
        loop.run()
    assert loop.state.step == 2, "two steps are done"


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_rank_is_killed_once_and_not_again_after_a_restart(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: killed.append(number))
    loop = faulty("sigkill")
    loop.recorder.attempt = attempt
    assert loop.run() and killed == [signal.SIGKILL] * (attempt == 0)


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


def test_logits_overflow_once_in_training(faulty: Faulty) -> None:
    loop = faulty("nan_on_one_rank", step=2)
    loop.run()
    assert loop.last["step"] == 4 and not torch.isfinite(torch.tensor(loop.last["loss"])), "NaN spreads to all weights"


def test_memory_that_there_is_not(faulty: Faulty) -> None:
    with pytest.raises(RuntimeError, match="memory"):
        faulty("out_of_memory").run()


def test_a_straggler_is_late_in_every_step_from_its_first_on(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    loop = faulty("straggler", step=3, delay_s=0.25)
    monkeypatch.setattr(time, "sleep", slept.append)
    assert loop.run() and slept.count(0.25) == 2
