"""The micro-batch that is chosen, and the advice where a batch does not divide."""

import dataclasses
import re
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from dtk.config.batch import check_batch, settle
from dtk.config.compose import Composed, compose
from dtk.errors import DtkError


@cache
def ddp() -> Composed:
    return compose(["strategy=ddp", "model=gpt2_tiny"])


def with_batch(total: int, micro: int = 0, microbatches: int | None = None, resume: str | None = None) -> Composed:
    """Return the configuration with that batch."""
    config = ddp().config
    train = dataclasses.replace(config.train, global_batch_size=total, micro_batch_size=micro)
    parallel = dataclasses.replace(config.parallel, microbatches=microbatches)
    config = dataclasses.replace(config, train=train, parallel=parallel, resume=resume)
    return dataclasses.replace(ddp(), config=config)


@settings(max_examples=80)
@given(st.integers(1, 64), st.integers(1, 8))
def test_the_chosen_micro_batch_divides_the_batch(total: int, ranks: int) -> None:
    try:
        settled = settle(with_batch(total), ranks)
    except DtkError as error:
        assert total % ranks
        for size in re.findall(r"\d+", error.fix):
            assert int(size) % ranks == 0
        return
    micro = settled.config.train.micro_batch_size
    assert 1 <= micro <= 4 and total % (micro * ranks) == 0
    assert settled.plain["train"]["micro_batch_size"] == micro, "config and plain values agree"
    check_batch(settled.config, ranks)


def test_a_micro_batch_that_was_given_stays() -> None:
    given_size = with_batch(8, micro=2)
    assert settle(given_size, 2) is given_size


def test_micro_batches_of_a_pipeline_decide_their_size() -> None:
    assert settle(with_batch(16, microbatches=8), 2).config.train.micro_batch_size == 1
    assert settle(with_batch(16, microbatches=2), 2).config.train.micro_batch_size == 4


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (with_batch(10, 4), "train.global_batch_size=10 cannot be split into 2 ranks x train.micro_batch_size=4"),
        (with_batch(4, 4), "train.global_batch_size=4 is less than 2 ranks x train.micro_batch_size=4"),
        (
            with_batch(8, 2, microbatches=3),
            "parallel.microbatches=3 does not divide the 4 samples of each data-parallel rank: train.global_batch_size"
            "=8 on 2 data-parallel ranks - use parallel.microbatches=2, or train.global_batch_size=6",
        ),
        (with_batch(8, 2, microbatches=4), "parallel.microbatches=4, but train.micro_batch_size=2 makes 2 - use"),
    ],
)
def test_a_batch_that_does_not_divide_is_one_line(batch: Composed, message: str) -> None:
    with pytest.raises(DtkError) as caught:
        check_batch(batch.config, 2)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (with_batch(8, microbatches=0), "parallel.microbatches=0 is out of range"),
        (with_batch(8, microbatches=-1), "parallel.microbatches=-1 is out of range"),
        (with_batch(-8), "train.global_batch_size=-8 is out of range"),
    ],
)
def test_a_number_out_of_range_is_refused_before_the_batch_is_divided_by_it(batch: Composed, message: str) -> None:
    with pytest.raises(DtkError, match=message):
        settle(batch, 2)


def test_a_resumed_run_keeps_its_batch_and_is_told_how_many_ranks_fit() -> None:
    with pytest.raises(DtkError) as caught:
        settle(with_batch(9, resume="runs/x"), 2)
    assert "cannot change in a resumed run, so use fewer ranks: launcher.nproc=1" in caught.value.fix
    with pytest.raises(DtkError) as caught:
        check_batch(with_batch(9, 2, resume="runs/x").config, 2)
    assert caught.value.fix.endswith("launcher.nproc=1 train.micro_batch_size=0")
