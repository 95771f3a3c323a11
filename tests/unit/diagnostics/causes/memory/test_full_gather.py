"""One gather of (almost) all parameters is a cause; smaller ones, and small models, are none."""

import pytest

from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.causes.memory.full_gather import decide
from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.memory.gathering import MIB, SITE, call, job, sharded


@pytest.mark.parametrize(
    ("mib", "status"), [(100, "confirmed"), (91, "confirmed"), (89, "ruled_out"), (40, "ruled_out")]
)
def test_almost_all_parameters_count(mib, status):
    finding = decide(job(sharded(), call("unit", mib)))
    assert finding.status == status
    assert f"{mib} MiB" in text_of(finding).measured


def test_the_users_call_is_named_and_costs_itself():
    finding = decide(job(sharded(), call("user", 100, site=SITE), call("unit", 10)))
    assert (finding.ranks, finding.cost.value) == ((0, 1), 100 * MIB)
    assert [(place.rank, place.line) for place in finding.where] == [(0, 58)]
    text = text_of(finding)
    assert "The code at train.py:58 gathers 100% of all parameters in one all_gather of 100 MiB" in text.summary
    assert "do not gather all parameters at train.py:58" in text.remedies[0].change


def test_a_call_larger_than_any_padding_is_another_thing():
    assert decide(job(sharded(), call("user", 140, site=SITE))).status == "undecided"


@pytest.mark.parametrize(("run", "kind"), [(None, "code"), ({}, "override")])
def test_wrapping_blocks_saves_all_but_two_of_them(run, kind):
    finding = decide(job(sharded(), call("unit", 100), run=run))
    remedy = text_of(finding).remedies[0]
    assert remedy.kind == kind
    assert "wrapped only as a whole" in text_of(finding).summary


def test_a_large_root_unit_is_a_hint():
    assert "root unit" in text_of(decide(job(sharded(), call("unit", 50)))).summary
    assert "root unit" not in text_of(decide(job(sharded(), call("unit", 50, unit="blocks.0")))).summary


def test_a_small_model_is_no_reason_for_concern():
    small = ModelSize(2, "fsdp", MIB // 2, MIB // 2, MIB, "summary.json", 2)
    finding = decide(job(small, call("unit", 0, full_bytes=MIB // 2)))
    assert (finding.status, text_of(finding).summary) == ("ruled_out", "All parameters together are small.")


def test_without_the_size_of_the_model_it_stays_open():
    finding = decide(job(ModelSize(2, ""), call("unit", 100)))
    assert finding.status == "undecided"
    assert "one unit that is used several times" in text_of(finding).summary
    assert text_of(finding).missing
    unsharded = decide(job(ModelSize(2, "ddp", shards=1)))
    assert (unsharded.status, text_of(unsharded).measured) == ("ruled_out", "strategy ddp shards no parameters")
    nothing = decide(job(ModelSize(2, "")))
    assert (nothing.status, text_of(nothing).measured) == ("ruled_out", "no gather recorded")
