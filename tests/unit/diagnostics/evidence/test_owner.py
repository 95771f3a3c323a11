"""Which rank, attempt and node a path states: only words that mean a rank count."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.model import Owner, owner


@pytest.mark.parametrize(
    ("path", "whose"),
    [
        ("logs/rank_3.log", Owner(3)),
        ("Rank-12/stderr.txt", Owner(12)),
        ("job.rank=7.out", Owner(7)),
        ("rank3_of_8.log", Owner(3)),
        ("llama_rank_7b/train.log", Owner()),
        ("slurm-123456.out", Owner()),
        ("2026-01-01_train.log", Owner()),
        ("frank_4.log", Owner()),
        ("worker_2.log", Owner(2)),
        ("task-5.err", Owner(5)),
        ("homeworker2.log", Owner()),
        ("stderr.1", Owner(1)),
        ("attempt_1/3/stderr.log", Owner(None, 3, 1, "")),
        ("run/node_a/attempt_0/7/stdout.log", Owner(None, 7, 0, "run/node_a")),
        ("attempt_0/rank_00002/stderr.log", Owner(2, attempt=0)),
        ("attempt_0/123456/stderr.log", Owner(attempt=0)),
        ("attempt_x/3/worker_4.log", Owner(4)),
        ("rank_1/rank_2.log", Owner(2)),
    ],
)
def test_whose_file_it_is(path, whose):
    assert owner(Path(path)) == whose


@given(st.integers(0, 9_999_999), st.integers(0, 99))
@settings(max_examples=60)
def test_any_rank_and_attempt_is_read_back(rank, attempt):
    found = owner(Path(f"attempt_{attempt}/rank_{rank:05d}/stderr.log"))
    assert (found.rank, found.attempt, found.local_rank) == (rank, attempt, None)
