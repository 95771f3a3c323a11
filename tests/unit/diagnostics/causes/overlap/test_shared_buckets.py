"""Buckets in words, and what cutting gradients well would win."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.analysis.step_profile.overview import MS
from diagnostics.causes.overlap._shared import bucket_cap, bucket_gain, portions


def call(transfer_ms: float, size_bytes: int = 1 << 20, exposed_ms: float | None = None) -> Any:
    """One reduction; all of it is exposed unless told otherwise."""
    exposed = transfer_ms if exposed_ms is None else exposed_ms
    return SimpleNamespace(
        transfer=transfer_ms * MS, exposed_transfer=exposed * MS, message=SimpleNamespace(size_bytes=size_bytes)
    )


def view(latency_us: float = 20.0, **declared: Any) -> Any:
    return SimpleNamespace(latency_ns=latency_us * 1000, declared=lambda key: declared.get(key.rpartition(".")[2]))


@pytest.mark.parametrize(
    ("size_bytes", "declared", "caps"),
    [
        (400 << 20, 100, (25.0, " (bucket_cap_mb is 100)")),
        (40 << 20, None, (10.0, "")),
        (0, 25.0, (25.0, " (bucket_cap_mb is 25)")),
        (1 << 20, "all", (0.25, "")),
    ],
)
def test_the_cap_to_advise_and_the_one_that_is_declared(
    size_bytes: int, declared: Any, caps: tuple[float, Any]
) -> None:
    assert bucket_cap(view(bucket_cap_mb=declared), size_bytes) == caps


def test_one_late_bucket_wins_most_of_its_transfer() -> None:
    gain = bucket_gain(view(), [call(40.0, 100 << 20)], round(100 * MS))
    assert 25.0 < gain < 40.0


def test_nothing_is_won_where_nothing_is_exposed_or_sent() -> None:
    assert bucket_gain(view(), [], 10**9) == 0.0
    assert bucket_gain(view(), [call(40.0, exposed_ms=0.0)], 10**9) == 0.0


@given(st.lists(st.floats(0.01, 50.0), min_size=1, max_size=5), st.floats(0, 200))
@settings(max_examples=80)
def test_no_more_is_won_than_is_exposed(transfers: list[float], backward_ms: float) -> None:
    gain = bucket_gain(view(), [call(ms) for ms in transfers], round(backward_ms * MS))
    assert 0.0 <= gain <= sum(transfers) + 1e-9


def test_words() -> None:
    assert str(portions(120, "reductions", 120 << 20)) == "120 reductions of 1 MiB on average"
    assert str(portions(120, "gathers", 0)) == "120 gathers of unknown size on average"
