"""Calls of a simulated step as traffic: named by dimension, micro-batches multiplied, the control group left out."""

from typing import Any

import pytest

from dtk.plan.job import planned_job
from dtk.plan.simulated.engine import totals, whole_dimension
from dtk.simulate.step import Call


def call(op: str = "all_reduce", group: str = "default_pg", micro_batch: int = 0, **values: Any) -> Call:
    return Call(op, group, values.pop("ranks", (0, 1, 2, 3)), values.pop("size_bytes", 100), micro_batch, **values)


def test_the_group_of_all_ranks_is_named_by_the_dimension_that_it_serves() -> None:
    calls = [call(), call(group="mesh_dp_shard"), call(dimension="ep"), call(group="control")]
    counts, sizes = totals(calls, "dp", simulated=1, rounds=1)
    names = {name: (counts[kind], sizes[kind]) for kind in counts for name in [kind[1]]}
    assert names == {"dp": (1, 100), "dp_shard": (1, 100), "ep": (1, 100)}


def test_the_middle_micro_batch_stands_for_all_between_the_first_and_the_last() -> None:
    calls = [call("all_gather", micro_batch=number) for number in (0, 1, 2)] + [call("reduce_scatter", micro_batch=2)]
    counts, sizes = totals(calls, "dp_shard", simulated=3, rounds=10)
    assert counts["all_gather", "dp_shard", 4, 1] == 10
    assert sizes["all_gather", "dp_shard", 4, 1] == 1000
    assert counts["reduce_scatter", "dp_shard", 4, 1] == 1
    # Two micro-batches are simulated as they are.
    assert totals(calls[:2], "dp_shard", simulated=2, rounds=2)[0]["all_gather", "dp_shard", 4, 1] == 2


def test_groups_with_other_distances_are_other_lines() -> None:
    counts, _ = totals([call(ranks=(0, 4)), call(ranks=(0, 1)), call(ranks=(0,))], "dp", 1, 1)
    assert sorted(counts) == [("all_reduce", "dp", 1, 1), ("all_reduce", "dp", 2, 1), ("all_reduce", "dp", 2, 4)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["strategy=ddp"], "dp"),
        (["strategy=fsdp"], "dp_shard"),
        (["strategy=hsdp", "strategy.dp_replicate=2"], "dp_shard"),
        (["strategy=hsdp", "strategy.dp_replicate=4"], "dp_replicate"),
        (["strategy=ddp", "parallel.tp=4", "model.vocab_size=512", "data.vocab_size=512"], "tp"),
        (["strategy=fsdp", "parallel.cp=4"], "dp_shard"),  # States are sharded over the ranks of cp as well.
        (["strategy=ddp", "parallel.cp=4"], "dp"),
    ],
)
def test_the_dimension_of_all_ranks(overrides: list[str], expected: str) -> None:
    sizes = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64"]
    assert whole_dimension(planned_job([*sizes, *overrides], None, 4).config, 4) == expected
