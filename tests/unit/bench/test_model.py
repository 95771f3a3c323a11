"""Figures that follow from measured times, verdicts over noise, the JSON; a line between parent and ranks."""

import json

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from dtk.bench.bandwidth import OPERATIONS
from dtk.bench.model import Gain, Side, Spec, as_json, key_of, loads
from dtk.compare.statistics import Estimate
from tests.unit.bench.samples import compared, report, result


def test_a_longer_time_is_a_lower_bandwidth() -> None:
    item = result("auto", "all_reduce", 1 << 20)
    rate, time_s = item.algbw(), item.time_s
    assert time_s.low is not None and time_s.high is not None and rate.low is not None and rate.high is not None
    assert rate.low < rate.median < rate.high
    assert rate.low == pytest.approx((1 << 20) / time_s.high / 1e9)
    assert item.busbw(4).median == pytest.approx(rate.median * 2 * 3 / 4)
    assert item.busbw(1).median == 0.0


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Estimate(1.2, 1.1, 1.3, 5), "faster"),
        (Estimate(0.8, 0.7, 0.9, 5), "slower"),
        (Estimate(1.2, 0.9, 1.5, 5), "indistinguishable from noise"),
        (Estimate(9.0, None, None, 2), "indistinguishable from noise"),
    ],
)
def test_a_gain_needs_an_interval_beside_one(ratio: Estimate, verdict: str) -> None:
    assert Gain("all_reduce", 1024, ratio).verdict == verdict


def test_the_users_own_variables_win() -> None:
    side = Side("tcp", {"NCCL_DEBUG": "WARN", "NCCL_IB_SL": "1"}, {"NCCL_DEBUG": "INFO"})
    assert side.effective == {"NCCL_DEBUG": "INFO", "NCCL_IB_SL": "1"}
    assert Side("auto").effective == {}


def test_one_wrong_element_is_a_wrong_report() -> None:
    import dataclasses

    bad = dataclasses.replace(result("auto", "all_reduce", 1024), wrong_elements=1)
    assert report(results=(bad,)).wrong and not report().wrong


def test_json_has_the_rates_and_their_definitions() -> None:
    data = json.loads(json.dumps(as_json(compared())))
    assert data["schema"] == "dtk.bench.comm/1" and set(data["in_place"]) == set(OPERATIONS)
    first = data["results"][0]
    assert first["algbw_gb_per_s"]["median"] == pytest.approx(first["size_bytes"] / first["time_s"]["median"] / 1e9)
    assert [gain["verdict"] for gain in data["gains"]][-1] == "faster"
    assert data["failure"] is None and "all_reduce 2 (n - 1) / n" in data["definitions"]["busbw"]


SPECS = st.builds(
    Spec,
    operations=st.lists(st.sampled_from(list(OPERATIONS)), max_size=5).map(tuple),
    sizes_bytes=st.lists(st.integers(1, 1 << 40), max_size=5).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    device=st.sampled_from(["cpu", "cuda"]),
    backend=st.sampled_from(["gloo", "nccl"]),
    passes=st.integers(0, 100),
    warm_up=st.integers(0, 100),
    calls=st.integers(1, 1000),
    seconds=st.floats(0.1, 1e6),
    timeout_s=st.floats(1, 1e6),
)


@settings(max_examples=50, deadline=None)
@given(SPECS)
def test_a_launch_is_read_as_it_was_written(spec: Spec) -> None:
    assert loads(spec.dumps()) == spec and "\n" not in spec.dumps()


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"operations": 3}'])
def test_a_line_that_is_no_launch_is_refused(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        loads(text)


def test_a_cell_is_named_so_that_both_parts_can_be_read_back() -> None:
    operation, size = key_of("all_reduce", 1024).split()
    assert (operation, int(size)) == ("all_reduce", 1024)
