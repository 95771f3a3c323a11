"""Checks have limits, and none costs the others."""

import threading

from dtk.doctor.model import Check, Result, Scope
from dtk.doctor.registry import examine


def test_a_check_that_hangs_or_breaks_does_not_cost_the_others(tmp_path):
    release = threading.Event()
    checks = [
        Check("hangs", "t", "", lambda scope: release.wait() and None),
        Check("breaks", "t", "", lambda scope: 1 / 0),
        Check("fine", "t", "", lambda scope: Result("ok", "it is")),
    ]
    by_name = {
        completed.name: completed.result
        for completed in examine(checks, Scope(tmp_path, timeout_s=0.3), lambda check: None)
    }
    release.set()
    assert (by_name["hangs"].status, by_name["hangs"].summary) == ("failure", "no answer in 0 s")
    assert (by_name["breaks"].status, by_name["fine"].status) == ("warning", "ok")
    assert "ZeroDivisionError" in by_name["breaks"].summary
    assert by_name["breaks"].remedies[0].command == "dtk doctor --only breaks --json"
