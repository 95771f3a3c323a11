"""Units that stay gathered: by their gathers in traces, else by configuration; what is meant so is no cause."""

import pytest

from diagnostics.analysis.memory.gathers import UnitUse
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.causes.memory.no_reshard import decide
from diagnostics.contract.findings import text_of
from tests.traits import traits_of
from tests.unit.diagnostics.causes.memory.gathering import MIB, call, job, sharded


def blocks(gathers: int, count: int = 4) -> dict[str, UnitUse]:
    return {f"blocks.{n}": UnitUse(10 * MIB, gathers, forwards=2, backwards=2) for n in range(count)}


@pytest.mark.parametrize(("gathers", "status"), [(2, "confirmed"), (3, "ruled_out"), (4, "ruled_out")])
def test_units_that_are_gathered_once_a_step_are_kept(gathers, status):
    finding = decide(job(sharded(), call("unit", 10), units=blocks(gathers)))
    assert finding.status == status


def test_the_cost_is_all_but_the_units_in_use():
    finding = decide(job(sharded(), call("unit", 10), units=blocks(2)))
    assert (finding.ranks, finding.cost.value) == ((0, 1), 20 * MIB)
    text = text_of(finding)
    assert text.summary.startswith(
        "4 units are gathered once per step and kept from forward to backward: 40 MiB on ranks 0 and 1."
    )
    assert "reshard_after_forward=True" in text.remedies[0].change
    of_dtk = decide(job(sharded(), call("unit", 10), units=blocks(2), run={}))
    assert text_of(of_dtk).remedies[0].change == "strategy.reshard_after_forward=true"
    assert of_dtk.confidence > finding.confidence


def test_two_blocks_are_in_use_anyway():
    finding = decide(job(sharded(), call("unit", 10), units=blocks(2, count=2)))
    assert finding.status == "ruled_out"
    assert "costs little" in text_of(finding).summary


def test_the_last_block_alone_may_be_kept():
    units = blocks(4) | {"blocks.9": UnitUse(10 * MIB, 2, forwards=2, backwards=2)}
    assert decide(job(sharded(), call("unit", 10), units=units)).status == "ruled_out"


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (ModelSize(2, "zero2", shards=2, traits=traits_of("zero2")), "by definition"),
        (ModelSize(2, "ddp", shards=1), "Strategy ddp shards no parameters."),
        (ModelSize(2, ""), "The records show no sharded unit."),
    ],
)
def test_what_keeps_nothing_is_ruled_out(size, said):
    finding = decide(job(size))
    assert finding.status == "ruled_out"
    assert said in text_of(finding).summary


@pytest.mark.parametrize(("declared", "status"), [(True, "ruled_out"), (False, "confirmed"), (None, "undecided")])
def test_without_traces_the_configuration_decides(declared, status):
    jobs = job(sharded(), run={"strategy": {"reshard_after_forward": declared}})
    for rank in jobs.ranks.values():
        rank.trace = None
    finding = decide(jobs)
    assert finding.status == status
    if status == "confirmed":
        assert "from forward to backward (reshard_after_forward=false): " in text_of(finding).summary
