"""Results from findings: the worst counts, each remedy is told once."""

import re
from pathlib import Path

from hypothesis import given, strategies as st

from diagnostics.contract.files import read_table
from dtk.doctor import model
from dtk.doctor.model import SEVERITY, Finding, Remedy, Result, finding, judged, not_applicable, worst


def test_remedies_are_told_once():
    fix = Remedy("do", "it")
    result = judged([Finding("warning", "a", fix), Finding("failure", "b", fix)], "fine")
    assert (result.status, result.summary, result.details, result.remedies) == ("failure", "b", ("warning: a",), (fix,))


def test_the_worst_finding_is_the_summary_and_the_others_are_details():
    seen = [Finding("warning", "w", Remedy("do", "x")), Finding("failure", "f", Remedy("fix")), Finding("warning", "v")]
    result = judged(seen, "fine", details=["more"], measures={"a": 1}, common={"torch": "2"})
    assert (result.status, result.summary) == ("failure", "f")
    assert result.details == ("warning: w", "warning: v", "more")
    assert result.remedies == (Remedy("fix"), Remedy("do", "x"))
    assert (result.measures, result.common) == ({"a": 1}, {"torch": "2"})


def test_without_a_finding_all_is_well():
    assert judged([], "fine") == Result("ok", "fine")
    assert judged(iter(()), "fine").status == "ok"


@given(st.lists(st.sampled_from(SEVERITY)))
def test_the_worst_status_is_one_of_them(statuses):
    if statuses:
        assert worst(statuses) in statuses and all(
            SEVERITY.index(worst(statuses)) >= SEVERITY.index(status) for status in statuses
        )
    else:
        assert worst(statuses) == "not_applicable"


def test_a_finding_of_the_table_is_filled_in_and_the_check_may_decide_how_bad_it_is():
    wide = finding("pcie_narrow", gpu=2, bus="0000:3b:00", width=8, most=16)
    remedy = Remedy("reseat the card, try another slot or riser", "sudo lspci -vv -s 0000:3b:00 | grep -i LnkSta")
    assert wide == Finding("warning", "GPU 2: PCIe x8 of x16", remedy)
    assert finding("node_silent", node=3) == Finding(
        "failure", "node 3 does not respond", Remedy("check whether it is still running")
    )
    texts = [finding("inodes", bad=bad, files=12345, place="/runs") for bad in (True, False)]
    assert [finding.status for finding in texts] == ["failure", "warning"]
    assert texts[0].text == "only 12,345 more files can be created at /runs (inodes)"
    assert finding("python_debug", name="Python 3").remedy is None


def test_the_table_holds_what_the_checks_name_and_nothing_else():
    folder = Path(model.__file__).parent
    sources = "".join(path.read_text() for path in folder.glob("*.py"))
    table = read_table(folder / "findings.yaml")
    for key, entry in table.items():
        whole = key.rpartition("_")[2] == "differs" or f'"{key}"' in sources
        assert whole, f"no check says {key}"
        assert set(entry) - {"fix", "command"} in ({"failure"}, {"warning"}, {"either"}), key
    assert set(re.findall(r'finding\("(\w+)"', sources)) <= set(table)


def test_what_does_not_apply_has_its_reason():
    assert not_applicable("why", details=("d",)) == Result("not_applicable", "why", ("d",))
