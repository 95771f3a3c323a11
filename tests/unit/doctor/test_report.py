"""What the doctor found, as a document and as JSON; the exit code follows from the worst."""

import json

import msgspec
import pytest

from diagnostics.report.terminal import render
from dtk.doctor.model import Remedy, Result
from dtk.doctor.registry import Completed
from dtk.doctor.report import FULL_TABLES, Node, Report, as_json, document


def completed(name, status="ok", summary="fine", topic="t", **more):
    return Completed(name, topic, Result(status, summary, **more), 0.25)


def report_of(*checks, between=()):
    return Report((Node(0, "host0", tuple(checks)),), tuple(between), 1.5)


def shown(report, verbose=False):
    return render(document(report, verbose=verbose), columns=None, colour=False)


@pytest.mark.parametrize(
    ("statuses", "status", "code"),
    [
        (["ok", "not_applicable"], "ok", 0),
        (["ok", "warning"], "warning", 0),
        (["warning", "failure", "ok"], "failure", 1),
        (["not_applicable"], "not_applicable", 0),
        ([], "not_applicable", 0),
    ],
)
def test_the_worst_check_decides(statuses, status, code):
    report = report_of(*(completed(f"c{n}", s) for n, s in enumerate(statuses)))
    assert (report.status, report.exit_code) == (status, code)


def test_what_lies_between_the_nodes_counts_too():
    report = report_of(completed("a"), between=(completed("clock", "failure", "2 s apart", "nodes"),))
    assert report.exit_code == 1
    assert "Between the nodes" in shown(report) and "FAILURE" in shown(report)


def test_details_and_remedies_of_what_is_bad_are_shown():
    fix = Remedy("do it", "sudo it")
    text = shown(
        report_of(
            completed("bad", "failure", "broken", details=("line 1",), remedies=(fix,)),
            completed("good", details=("x",)),
        )
    )
    assert "line 1" in text and "fix: do it" in text and "sudo it" in text
    assert "\n  x" not in text
    assert "  x" in shown(report_of(completed("good", details=("x",))), verbose=True)
    assert shown(report_of(completed("good"))).startswith("host0\n"), "a name gets no capital"
    assert text.rstrip().endswith("1 failure, 1 ok, 0 not applicable (1.5 s)")


def test_checks_that_do_not_apply_for_one_reason_are_one_row():
    gpu = [completed(name, "not_applicable", "no NVIDIA GPU here") for name in ("clocks", "ecc")]
    text = shown(report_of(*gpu, completed("xid", "not_applicable", "no log")))
    assert "2 checks" in text and "no NVIDIA GPU here (clocks, ecc)" in text
    assert "xid" in text and "no log (xid)" not in text
    assert "(clocks, ecc)" not in shown(report_of(*gpu), verbose=True)


def test_of_many_nodes_those_that_are_well_take_a_line():
    good = [Node(n, f"host{n}", (completed("a"), completed("b", "not_applicable", "none"))) for n in range(FULL_TABLES)]
    bad = Node(FULL_TABLES, "host9", (completed("a", "failure", "broken"),))
    text = shown(Report((*good, bad), (), 2.0))
    assert "node 3: host3: all 2 checks are ok or do not apply" in text and "broken" in text
    assert f"on {FULL_TABLES + 1} nodes (2.0 s)" in text
    assert "all 2 checks" not in shown(Report((*good, bad), (), 2.0), verbose=True)


def test_a_check_of_another_node_comes_back_from_json_as_it_was():
    check = completed(
        "a", "warning", "w", details=("d",), remedies=(Remedy("do"),), measures={"x": [1]}, common={"torch": "2"}
    )
    assert msgspec.json.decode(msgspec.json.encode(check), type=Completed) == check


def test_json_names_every_node_and_check():
    data = json.loads(
        json.dumps(as_json(report_of(completed("a"), completed("b", "failure"), between=(completed("clock"),))))
    )
    assert (data["schema"], data["status"], data["exit_code"]) == ("dtk.doctor/1", "failure", 1)
    assert data["nodes"][0]["status"] == "failure"
    assert [check["name"] for check in data["nodes"][0]["checks"]] == ["a", "b"]
    assert data["between"][0]["name"] == "clock"
