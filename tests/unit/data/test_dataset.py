"""What all datasets share: batches on their device, the held-out share, and what the manifest says."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dtk.data.dataset import Batch, Dataset, held_out, to_batch


@given(st.integers(1, 10**6), st.floats(0.0, 0.99))
@settings(max_examples=60, deadline=None)
def test_a_fraction_holds_out_at_least_one_sample(samples: int, fraction: float) -> None:
    kept = held_out(samples, fraction)
    assert kept == 0 if fraction == 0 else kept >= 1
    assert abs(kept - samples * fraction) <= 1


def test_batches_are_copies_of_their_own() -> None:
    rows = np.arange(12, dtype=np.uint16).reshape(3, 4).T  # Not contiguous.
    batch = to_batch(rows, rows[:, 0])
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64 and batch.inputs.is_contiguous()
    rows[0, 0] = 99
    assert batch.inputs[0, 0] == 0 and batch.counts and batch.to(torch.device("cpu")) is batch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_trees_of_tensors_go_to_the_device() -> None:
    batch = Batch({"a": torch.ones(2), "b": [torch.zeros(1), "text"]}, torch.ones(1), counts=False)
    there = batch.to(torch.device("cuda"))
    assert there.inputs["a"].is_cuda and there.inputs["b"][1] == "text" and not there.counts


class Squares(Dataset):
    """Sample i is i squared."""

    train_size, validation_size, vocab_size = 4, 2, 100

    def train(self, ids: np.ndarray) -> Batch:
        return to_batch(ids**2, ids)

    validation = train

    def about(self) -> dict[str, Any]:
        return {"name": "squares"}


def test_a_stream_follows_the_ids_and_reads_no_further_than_asked() -> None:
    requests: list[int] = []

    def ids() -> Any:
        for i in range(3):
            requests.append(i)
            yield np.array([i, i + 1])

    stream = Squares().stream(ids())
    assert next(stream).inputs.tolist() == [0, 1] and requests == [0]
    assert [batch.inputs.tolist() for batch in stream] == [[1, 4], [4, 9]]


def test_the_manifest_has_sizes_and_whether_the_data_is_real() -> None:
    expected = {"name": "squares", "synthetic": False, "train_samples": 4, "validation_samples": 2}
    assert Squares().describe() == expected
