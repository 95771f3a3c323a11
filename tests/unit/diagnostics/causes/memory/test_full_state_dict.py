"""A checkpoint that brings the whole model to each rank: what counts is how much of it is alive at one moment."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.memory.curve import Allocation, Curve
from diagnostics.analysis.memory.gathers import Traffic
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.causes.memory.full_state_dict import decide
from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.memory.gathering import MIB, SITE, call, job, sharded


def curve(*spans: tuple[float, float | None]) -> Curve:
    """Gathered outputs of 25 MiB, alive from one moment to another."""
    result = Curve(0, 0)
    result.allocations = [Allocation(25 * MIB, start, None, "", "", end, gathered=True) for start, end in spans]
    return result


def decided(
    *spans: tuple[float, float | None], count: int = 4, run: dict[str, Any] | None = None, **more: Any
) -> Finding:
    job_memory = job(sharded(), *[call("library", 25, **more)] * count, run=run)
    for rank in job_memory.ranks.values():
        rank.curve = curve(*spans) if spans else None
    finding = decide(job_memory)
    return finding


TOGETHER = ((0, None), (1, None), (2, None), (3, None))


def test_parameters_that_are_kept_until_all_are_there() -> None:
    finding = decided(*TOGETHER, site=SITE)
    text = text_of(finding)
    assert (finding.status, finding.ranks) == ("confirmed", (0, 1))
    assert finding.cost is not None and finding.cost.value == 100 * MIB and finding.where[0].line == 58
    assert "4 gathers collect all parameters, 100 MiB of them alive at once" in text.summary
    assert text.remedies[0].change.startswith("save sharded with torch.distributed.checkpoint")


def test_with_the_optimizer_it_is_more_than_the_parameters() -> None:
    finding = decided(*TOGETHER, count=12)
    assert "12 gathers collect all parameters and optimizer states" in text_of(finding).summary


def test_one_after_the_other_is_how_it_should_be() -> None:
    finding = decided((0, 1), (1, 2), (2, 3), (3, 4))
    text = text_of(finding)
    assert finding.status == "ruled_out" and text.measured == "4 gathers, at most 25 MiB of 100 MiB alive together"


def test_half_of_the_parameters_at_one_moment_count() -> None:
    finding = decided((0, 2), (1, 3), (3, 4), (4, 5))
    assert finding.status == "confirmed" and text_of(finding).measured == "50 MiB alive at once"


def test_a_run_of_dtk_gets_an_override() -> None:
    (remedy,) = text_of(decided(*TOGETHER, run={})).remedies
    assert (remedy.kind, remedy.change) == ("override", "checkpoint.export=false")


def test_without_lifetimes_it_stays_open() -> None:
    finding = decided()
    assert finding.status == "undecided" and "profile_memory=True" in text_of(finding).missing


@pytest.mark.parametrize("count", [1, 3])
def test_less_than_the_model_is_no_state_dict(count: int) -> None:
    assert decided(*TOGETHER, count=count).status == "ruled_out"


def test_each_of_several_checkpoints_counts_for_itself() -> None:
    job_memory = job(sharded(), *(call("library", 25, step=step) for step in (10, 20) for _ in range(4)))
    for rank in job_memory.ranks.values():
        rank.curve = curve(*TOGETHER)
    finding = decide(job_memory)
    assert finding.step == 10 and "4 gathers collect all parameters, " in text_of(finding).summary


def test_a_dump_tells_the_line_that_the_trace_does_not() -> None:
    job_memory = job(sharded(), *[call("library", 25)] * 4)
    for rank in job_memory.ranks.values():
        rank.curve = curve(*TOGETHER)
    job_memory.ranks[1].flight = Traffic(gathers=[call("state_dict", 25, site=SITE)])
    finding = decide(job_memory)
    assert finding.where[0].line == 58


def test_a_strategy_that_shards_nothing_gathers_nothing() -> None:
    finding = decide(job(ModelSize(2, "ddp", shards=1)))
    assert (finding.status, text_of(finding).measured) == ("ruled_out", "strategy ddp shards no parameters")


FULL = "Of the allocated memory 36.61 GiB is allocated by PyTorch, and 0.57 GiB is reserved by PyTorch but unallocated."
OOM = f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 7 has a total capacity of 39.38 GiB. {FULL}"


def raised_in(function: str) -> str:
    lines = (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 9, in save',
        f'  File "/lib/torch/distributed/fsdp/_state_dict_utils.py", line 303, in {function}',
        f"torch.OutOfMemoryError: {OOM}",
    )
    return "".join(f"[rank7]: {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (raised_in("_full_pre_state_dict_hook"), True),
        (raised_in("_sharded_pre_state_dict_hook"), False),
        (raised_in("_full_pre_load_state_dict_hook"), False),
        (f"UserWarning: Failed to clone() tensor with name lm_head.weight on rank 1. Error: {OOM}\n", True),
    ],
)
def test_memory_that_ran_out_while_it_was_gathered(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "job.log").write_text(text)
    report = diagnose(tmp_path)
    assert report.outcome == "oom"
    assert any(root.cause == "memory.full_state_dict" for root in report.root_causes) == expected
