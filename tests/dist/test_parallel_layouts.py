"""Every layout computes what one process computes: loss, gradients by name, norm, the next step and the evaluation.

What it sends is what it declares. Broken on purpose, the same comparison is red.
"""

from dataclasses import replace
from typing import Any

import pytest

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from dtk.strategies.zero2 import Zero2Config
from tests.dist.layout_ranks import TRAIN, configuration
from tests.dist.ranks import run_ranks

TOLERANCE = 1e-5
"""Of figures relative to their size, and of gradients relative to the global norm. Measured: at most 2e-7."""
IN_BF16 = 2e-2
"""Of layouts in bfloat16, which has 8 bits: a part in 256, some layers deep."""
BF16 = schema.PrecisionConfig(name="bf16", compute_dtype="bfloat16")
RECOMPUTED = replace(TRAIN, activation_checkpoint_every=1)
RING, ULYSSES = ({"cp": 2, "context": method} for method in ("ring", "ulysses"))
WHOLE = {"sequence_parallel": False}
TWO = {
    ("gpt", "ddp, tp 2"): (DDPConfig(), {"tp": 2}, TRAIN),
    ("gpt", "fsdp, tp 2"): (FSDPConfig(), {"tp": 2}, TRAIN),
    ("gpt", "fsdp, tp 2, whole sequence, recomputed"): (FSDPConfig(), {"tp": 2, **WHOLE}, RECOMPUTED),
    ("llama", "fsdp, tp 2"): (FSDPConfig(), {"tp": 2}, TRAIN),
    ("llama", "fsdp, tp 2, gathered logits"): (FSDPConfig(), {"tp": 2, "loss_parallel": False}, TRAIN),
    ("llama tied", "ddp, tp 2, whole sequence"): (DDPConfig(), {"tp": 2, **WHOLE}, TRAIN),
    ("gpt", "ddp, tp 2, bf16"): (DDPConfig(), {"tp": 2}, TRAIN),
    ("gpt", "fsdp, tp 2, whole sequence, bf16"): (FSDPConfig(), {"tp": 2, **WHOLE}, TRAIN),
    ("gpt", "ddp, ring 2"): (DDPConfig(), RING, TRAIN),
    ("gpt", "fsdp, ulysses 2, recomputed"): (FSDPConfig(), ULYSSES, RECOMPUTED),
    ("gpt", "zero1, ring 2, recomputed"): (Zero1Config(), RING, RECOMPUTED),
    ("llama tied", "fsdp, ring 2"): (FSDPConfig(), RING, TRAIN),
    ("llama tied", "ddp, ulysses 2"): (DDPConfig(), ULYSSES, TRAIN),
    ("gpt", "fsdp, ring 2, bf16"): (FSDPConfig(), RING, TRAIN),
    ("gpt", "ddp, ulysses 2, bf16"): (DDPConfig(), ULYSSES, TRAIN),
    ("moe", "ddp, dp 2"): (DDPConfig(), {}, TRAIN),
    ("moe", "ddp, ep 2"): (DDPConfig(), {"ep": 2}, TRAIN),
    ("moe", "fsdp, ep 2"): (FSDPConfig(), {"ep": 2}, replace(TRAIN, micro_batch_size=4)),
    ("moe", "fsdp, ep 2, recomputed"): (FSDPConfig(), {"ep": 2}, RECOMPUTED),
    ("moe", "ddp, ep 2, bf16"): (DDPConfig(), {"ep": 2}, TRAIN),
    ("moe", "fsdp, ep 2, bf16"): (FSDPConfig(), {"ep": 2}, TRAIN),
    ("moe top 1", "zero2, ep 2"): (Zero2Config(), {"ep": 2}, TRAIN),
    ("moe", "zero1, ep 2, recomputed"): (Zero1Config(), {"ep": 2}, RECOMPUTED),
    ("moe capacity", "fsdp, ep 2"): (FSDPConfig(), {"ep": 2}, TRAIN),
    ("moe", "fsdp, ring 2"): (FSDPConfig(), RING, TRAIN),
    ("moe top 1", "ddp, ulysses 2, ep 2"): (DDPConfig(), {**ULYSSES, "ep": 2}, RECOMPUTED),
    ("moe", "fsdp, tp 2, ep 2"): (FSDPConfig(), {"tp": 2, "ep": 2}, RECOMPUTED),
    ("moe top 1", "ddp, tp 2"): (DDPConfig(), {"tp": 2}, RECOMPUTED),
}
FOUR = {
    ("gpt", "ddp, dp 2, tp 2"): (DDPConfig(), {"tp": 2}, TRAIN),
    ("gpt", "fsdp, dp 2, tp 2"): (FSDPConfig(), {"tp": 2}, TRAIN),
    ("gpt", "zero2, dp 2, tp 2, recomputed"): (Zero2Config(), {"tp": 2}, RECOMPUTED),
    ("gpt", "zero1, dp 2, tp 2"): (Zero1Config(), {"tp": 2}, TRAIN),
    ("gpt", "hsdp 2 x 1, tp 2"): (HSDPConfig(dp_replicate=2), {"tp": 2}, TRAIN),
    ("gpt", "ddp, tp 4"): (DDPConfig(), {"tp": 4}, replace(TRAIN, micro_batch_size=4)),
    ("gpt", "fsdp, dp 2, tp 2, dp innermost"): (FSDPConfig(), {"tp": 2, "placement": "dp"}, TRAIN),
    ("llama", "ddp, ring 2, tp 2, dp innermost"): (DDPConfig(), {**RING, "tp": 2, "placement": "dp"}, TRAIN),
    ("llama", "fsdp, dp 2, tp 2"): (FSDPConfig(), {"tp": 2}, TRAIN),
    ("llama tied", "fsdp, dp 2, tp 2, whole sequence"): (FSDPConfig(), {"tp": 2, **WHOLE}, TRAIN),
    ("llama", "fsdp, tp 4"): (FSDPConfig(), {"tp": 4}, TRAIN),
    ("gpt", "fsdp, ring 4"): (FSDPConfig(), {**RING, "cp": 4}, TRAIN),
    ("llama", "zero1, dp 2, ulysses 2"): (Zero1Config(), ULYSSES, TRAIN),
    ("llama tied", "fsdp, dp 2, ring 2"): (FSDPConfig(), RING, TRAIN),
    ("gpt", "hsdp 2 x 1, ulysses 2"): (HSDPConfig(dp_replicate=2), ULYSSES, TRAIN),
    ("gpt", "ddp, ring 2, tp 2"): (DDPConfig(), {**RING, "tp": 2}, TRAIN),
    ("llama", "fsdp, ulysses 2, tp 2"): (FSDPConfig(), {**ULYSSES, "tp": 2}, TRAIN),
    ("moe", "fsdp, dp 4, ep 2"): (FSDPConfig(), {"ep": 2}, TRAIN),
    ("moe", "hsdp 2 x 2, ep 2"): (HSDPConfig(dp_replicate=2), {"ep": 2}, TRAIN),
    ("moe", "zero2, ep 4"): (Zero2Config(), {"ep": 4}, TRAIN),
    ("moe", "zero1, dp 4, ep 2"): (Zero1Config(), {"ep": 2}, TRAIN),
    ("moe top 1", "ddp, dp 4, ep 2"): (DDPConfig(), {"ep": 2}, TRAIN),
    ("moe capacity", "ddp, ep 4"): (DDPConfig(), {"ep": 4}, RECOMPUTED),
    ("moe", "fsdp, dp 2, ring 2, ep 4"): (FSDPConfig(), {**RING, "ep": 4}, TRAIN),
    ("moe top 1", "hsdp 2 x 1, tp 2, ep 2"): (HSDPConfig(dp_replicate=2), {"tp": 2, "ep": 2}, TRAIN),
    ("moe", "ddp, ring 2, tp 2, ep 2"): (DDPConfig(), {**RING, "tp": 2, "ep": 2}, TRAIN),
}
MUTATIONS = {
    2: [
        *((name, ("gpt", "fsdp, tp 2")) for name in ("rows by part", "no sum", "no partial sums")),
        *((name, ("gpt", "ddp, ring 2")) for name in ("positions of a whole sequence", "consecutive tokens")),
        ("no all_reduce", ("llama tied", "ddp, tp 2, whole sequence")),
        ("experts as all else", ("moe", "fsdp, ep 2")),
        ("copies counted", ("moe", "ddp, ep 2")),
    ],
    4: [("swapped groups", ("gpt", "fsdp, dp 2, tp 2"))],
}
SINGLE = ("gpt", "llama", "llama tied", "moe", "moe top 1", "moe capacity")


@pytest.fixture(scope="module")
def single() -> dict[Any, Any]:
    cases = {name: configuration(name, SingleConfig(), {}) for name in SINGLE}
    return run_ranks("tests.dist.layout_ranks:steps_of", 1, cases, [("rows by part", "gpt")])[0]


def differences(result: dict[str, Any], single: dict[str, Any], tolerance: float = TOLERANCE) -> list[str]:
    """Figures of a layout that are not those of one process."""
    figures = ("loss", "norm", "after", "held out")
    wrong = [name for name in figures if abs(result[name] - single[name]) > tolerance * abs(single[name])]
    exact = ("accuracy", "experts") if tolerance == TOLERANCE else ()
    wrong += [name for name in exact if result[name] != single[name]]
    assert result["gradients"].keys() == single["gradients"].keys()
    for name, gradient in single["gradients"].items():
        if (result["gradients"][name] - gradient).abs().max() > tolerance * single["norm"]:
            wrong.append(name)
    return [*wrong, *(f"{name} is placed otherwise than its parameter" for name in result["misplaced"])]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("world_size", "layouts"), [(2, TWO), (4, FOUR)])
def test_every_layout_computes_what_one_process_computes(world_size: int, layouts: Any, single: Any) -> None:
    cases = {
        (model, layout): configuration(
            model, strategy, parallel, train=train, **({"precision": BF16} if layout.endswith("bf16") else {})
        )
        for (model, layout), (strategy, parallel, train) in layouts.items()
    }
    ranks = run_ranks("tests.dist.layout_ranks:steps_of", world_size, cases, MUTATIONS[world_size], timeout_s=500)
    for name in cases:
        result = ranks[0][name]
        tolerance = IN_BF16 if name[1].endswith("bf16") else TOLERANCE
        assert differences(result, single[name[0]], tolerance) == [], name
        for rank in ranks:
            assert (rank[name]["loss"], rank[name]["norm"]) == (result["loss"], result["norm"]), name
            assert rank[name]["declared"] == rank[name]["marked"], name
        declared: dict[Any, Any] = {}
        for (op, _), (count, size) in result["declared"].items():
            before = declared.get((op,), (0, 0))
            declared[op,] = before[0] + count, before[1] + size
        issued = [dict(rank[name]["issued"]) for rank in ranks]
        if ("all_to_all",) in declared:  # Rows that a rank sends back depend on routing; over all ranks they do not.
            count, size = declared.pop(("all_to_all",))
            travelled = [each.pop(("all_to_all",)) for each in issued]
            assert {each[0] for each in travelled} == {count}, name
            assert sum(each[1] for each in travelled) == world_size * size, name
        assert all(each == declared for each in issued), name
    for mutation in MUTATIONS[world_size]:
        assert differences(ranks[0][mutation], single[mutation[1][0]]) != [], f"{mutation} went unnoticed"


def test_the_mutation_of_rows_is_right_on_one_rank(single: Any) -> None:
    """So that its failure under tensor parallelism is that of the plain cut."""
    assert single["rows by part", "gpt"]["loss"] == pytest.approx(single["gpt"]["loss"], rel=1e-6)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world_size", [2, 3])
def test_backward_of_each_collective_is_the_gradient(world_size: int) -> None:
    for rank in run_ranks("tests.dist.layout_ranks:gradients_by_difference", world_size):
        assert set(rank) == {
            *("gather", "scatter_sum", "exchange", "exchange_rows", "copy", "reduce", "join", "cross_entropy_sum"),
        }
        assert max(rank.values()) < 1e-8, rank


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("world_size", "heads", "kv_heads"), [(2, 4, 2), (3, 6, 3), (3, 3, 3)])
def test_attention_over_ranks_is_that_of_the_whole_sequence(world_size: int, heads: int, kv_heads: int) -> None:
    for rank in run_ranks("tests.dist.layout_ranks:attention_over_ranks", world_size, heads, kv_heads):
        for method, worst in rank.items():
            assert max(worst) < 5e-6, (method, worst)
