"""Waiting that ends: results, errors and time limits, and why a server cannot be used."""

import threading

import pytest

from dtk.data.network import bounded, unreachable


def test_bounded_gives_result_error_or_timeout() -> None:
    assert bounded(lambda: 3, 5) == 3
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 5)
    with pytest.raises(TimeoutError):
        bounded(threading.Event().wait, 0.05)


def test_unreachable_says_why() -> None:
    assert "refused" in (unreachable("http://127.0.0.1:1/") or "").lower()
