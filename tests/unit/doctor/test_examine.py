"""Checks have limits, and none costs the others."""

import threading

from dtk.doctor.examine import examine
from dtk.doctor.model import Check, Result
from dtk.doctor.scope import Scope


def test_a_check_that_hangs_or_breaks_does_not_cost_the_others(tmp_path):
    release = threading.Event()
    checks = [
        Check("hangs", "t", "", lambda scope: release.wait() and None),
        Check("breaks", "t", "", lambda scope: 1 / 0),
        Check("fine", "t", "", lambda scope: Result("ok", "it is")),
    ]
    made = {one.name: one.result for one in examine(checks, Scope(tmp_path, timeout_s=0.3), lambda check: None)}
    release.set()
    assert (made["hangs"].status, made["hangs"].summary) == ("failure", "no answer in 0 s")
    assert (made["breaks"].status, made["fine"].status) == ("warning", "ok")
    assert "ZeroDivisionError" in made["breaks"].summary
    assert made["breaks"].remedies[0].command == "dtk doctor --only breaks --json"
