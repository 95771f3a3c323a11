"""The user's own dataset: a fair split, exact batches with and without workers, and one line for what does not fit."""

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from dtk.config.schema import CustomData
from dtk.data.build import build_dataset
from dtk.data.custom import CustomDataset, _received
from dtk.errors import DtkError


class Numbers(Dataset[Any]):
    def __init__(self, size: int = 100, make: Any = lambda i: (torch.tensor([i, -i]), i)) -> None:
        self.size, self.make = size, make

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


def config(**more: Any) -> CustomData:
    return CustomData(_target_="my.Numbers", **{"validation_fraction": 0.2, **more})


def test_every_sample_is_on_one_side_and_both_sides_are_mixed() -> None:
    data = CustomDataset(config(), Numbers())
    training = data.train(np.arange(data.train_size)).targets.tolist()
    held_out = data.validation(np.arange(data.validation_size)).targets.tolist()
    assert (len(training), len(held_out)) == (80, 20)
    assert sorted(training + held_out) == list(range(100))
    assert min(held_out) < 25 and max(held_out) >= 75


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_the_batches_that_were_asked_for(workers: int) -> None:
    data = CustomDataset(config(workers=workers), Numbers())
    expected = [np.array([3, 1, 4]), np.array([1, 5, 9]), np.array([2, 6, 5])]
    for ids, batch in zip(expected, data.stream(iter(expected)), strict=True):
        requests = data.train(ids)
        assert torch.equal(batch.inputs, requests.inputs) and torch.equal(batch.targets, requests.targets)
        assert batch.inputs.shape == (3, 2)


def test_any_tree_and_a_collate_of_ones_own() -> None:
    tree = CustomDataset(config(), Numbers(make=lambda i: ({"a": torch.ones(2), "b": [i, i]}, (i, 0.5))))
    batch = tree.train(np.arange(3))
    assert batch.inputs["a"].shape == (3, 2) and len(batch.inputs["b"]) == len(batch.targets) == 2

    class Own(Numbers):
        def collate(self, samples: list[Any]) -> Any:
            return torch.stack([x for x, _ in samples]) * 0, torch.zeros(len(samples))

    assert CustomDataset(config(), Own()).train(np.arange(4)).inputs.abs().sum() == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda i: (torch.zeros(i), i), "do not make a batch"),
        (lambda i: torch.zeros(3), "not a pair"),
        (lambda i: {"x": i}, "not a pair"),
    ],
)
def test_samples_that_do_not_fit_are_one_line(make: Any, text: str) -> None:
    with pytest.raises(DtkError, match=text):
        CustomDataset(config(), Numbers(make=make)).train(np.arange(3))


def test_samples_that_do_not_fit_are_one_line_from_a_worker_too() -> None:
    data = CustomDataset(config(workers=1), Numbers(make=lambda i: (torch.zeros(i + 1), i)))
    with pytest.raises(DtkError) as caught:
        list(data.stream(iter([np.arange(3)])))
    with pytest.raises(DtkError) as alone:
        data.train(np.arange(3))
    assert str(caught.value) == str(alone.value) and "\n" not in str(caught.value)


def killed(number: int) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(60)
def test_a_worker_that_dies_ends_the_stream_with_its_pid() -> None:
    data = CustomDataset(config(workers=1), Numbers(make=killed))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid"):
        list(data.stream(iter([np.arange(3)])))


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "Connection reset by peer"), EOFError(), FileNotFoundError()]
)
def test_a_worker_that_dies_while_it_sends_is_named_and_an_error_of_the_dataset_is_kept(error: Exception) -> None:
    def sends(error: Exception) -> Any:
        yield 1
        raise error

    received = _received(sends(error))
    assert next(received) == 1
    with pytest.raises(RuntimeError, match="DataLoader worker exited unexpectedly while it sent a batch"):
        next(received)
    data = CustomDataset(config(workers=1), Numbers(make=unreachable))
    with pytest.raises(ConnectionError, match="the store of images does not answer"):
        list(data.stream(iter([np.arange(3)])))


def unreachable(number: int) -> Any:
    raise ConnectionError("the store of images does not answer")


def test_what_has_no_length_is_one_line() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(DtkError, match="has no length"):
        CustomDataset(config(), Endless())
    with pytest.raises(DtkError, match="has 1 samples"):
        CustomDataset(config(), Numbers(1))


def test_another_content_has_another_hash() -> None:
    first, other = (CustomDataset(config(), Numbers(make=lambda i, k=k: (i + k, 0))).describe() for k in (0, 1))
    assert first["sha256"] != other["sha256"]
    assert first == CustomDataset(config(), Numbers(make=lambda i: (i, 0))).describe()


def test_a_target_that_is_no_dataset_is_refused() -> None:
    with pytest.raises(DtkError, match="is not a torch"):
        build_dataset(CustomData(_target_="torch.nn.Linear"), ["torch.*"])
