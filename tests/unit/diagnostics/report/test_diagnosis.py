"""The document of a diagnosis: the answer first, everything on the page, and what is open in the order of its use."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.symptoms.state import Symptoms, Waiting
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Suspicion, Text, Where
from diagnostics.diagnose import diagnose
from diagnostics.report import document as doc
from diagnostics.report.diagnosis import document
from diagnostics.report.jsonform import as_json
from diagnostics.report.model import Coverage, Report
from tests.unit.diagnostics.report.samples import finding, full, mismatch, report


def fields(report: Report, brief: bool = True) -> list[tuple[str, str]]:
    """Return label and text of the fields of a terminal's first screen."""
    blocks = doc.shown(document(report, brief=brief).lead, "terminal")
    return [(row.label, doc.plain(row.text)) for block in blocks if isinstance(block, doc.Fields) for row in block.rows]


def sections(report: Report, form: doc.Form = "html") -> dict[str, doc.Section]:
    """Return the sections of a form by their titles."""
    blocks = doc.shown(document(report).blocks, form)
    return {doc.plain(block.title).strip(): block for block in blocks if isinstance(block, doc.Section)}


def test_the_first_screen_says_who_where_how_to_fix_it_and_what_happened() -> None:
    labels = [label for label, _ in fields(report(mismatch()))]
    assert labels[:5] == ["blame", "where", "fix", "what", "cause"]
    rows = dict(fields(report(mismatch())))
    assert rows["where"] == "/home/me/project/train.py:88 in log_metrics (rank 1), broadcast [1] int64"
    assert rows["cause"] == "hang.collective_mismatch, 97% sure" and rows["cost"] == "305 s blocked"


@pytest.mark.parametrize(
    ("remedy", "text"),
    [
        (Remedy("override", "train.x=1", "less of it", "3 GiB"), "train.x=1 (saves 3 GiB)"),
        (Remedy("override", "train.x=1", "less of it"), "train.x=1 (less of it)"),
        (Remedy("code", "change train.py:3", "less of it"), "change train.py:3"),
    ],
)
def test_the_fix_says_what_it_saves_or_why(remedy: Remedy, text: str) -> None:
    assert dict(fields(report(finding("memory.leak", ranks=(1,), remedies=(remedy,)))))["fix"] == text


def test_only_of_a_victim_is_a_place_known() -> None:
    result = finding("hang.host_stall", ranks=(1,), victims=(0,), where=(Where(0, "train.py", 9, "step", "waits"),))
    labels = dict(fields(report(result)))
    assert labels["victim"].startswith("train.py:9 in step (rank 0)") and "where" not in labels


def test_a_brief_screen_shows_some_evidence_and_counts_the_rest() -> None:
    items = tuple(EvidenceItem("log", f"{n}.log", "x" * 500, n) for n in range(9))
    result = report(finding("memory.leak", ranks=(1,), evidence=items))
    seen = [text for label, text in fields(result) if label == "seen"]
    assert len(seen) == 4 and all(len(text) < 260 for text in seen) and ("", "and 5 more") in fields(result)
    assert seen[1].startswith("1.log:1: ")
    assert len([label for label, _ in fields(result, brief=False) if label == "seen"]) == 9


def test_a_line_that_speaks_twice_is_shown_once() -> None:
    item = EvidenceItem("log", "job.log", "killed", 7)
    result = finding("memory.leak", ranks=(1,), evidence=(item, item, EvidenceItem("log", "job.log", "killed: 9", 7)))
    assert [text for label, text in fields(report(result)) if label == "seen"] == ["job.log:7: killed"]


def test_an_unsure_answer_asks_for_what_would_decide_it() -> None:
    sure = report(finding("hang.host_stall", ranks=(1,), confidence=0.95, missing="a stack"))
    unsure = report(finding("hang.host_stall", ranks=(1,), confidence=0.6, missing="a stack"))
    assert "needed" not in dict(fields(sure)) and dict(fields(unsure))["needed"] == "a stack"


@pytest.mark.parametrize(("cause", "weighed"), [("hang.signature_mismatch", True), ("hang.device_stall", False)])
def test_a_suspicion_that_the_others_weigh_is_not_listed_beside_them(
    monkeypatch: pytest.MonkeyPatch, cause: str, weighed: bool
) -> None:
    unsure, call = replace(finding(cause), confidence=0.35), Waiting((1, 2), "all_gather")
    assert [label for label, _ in fields(report(unsure))].count("maybe") == 1
    stands = Symptoms((call,), (), (), (), frozenset(), peer_calls=(call,))
    monkeypatch.setattr("diagnostics.diagnose._suspected", lambda *_: (stands, (Suspicion("hang.rank_raised", 0.4),)))
    named = [text.partition(" [")[2].partition("]")[0] for label, text in fields(report(unsure)) if label == "maybe"]
    assert named == (["hang.rank_raised"] if weighed else ["hang.rank_raised", cause])


def test_a_second_cause_stands_beside_the_first() -> None:
    result = report(
        finding("memory.leak", ranks=(1,)), finding("numeric.spike", remedies=(Remedy("code", "go back", "x"),))
    )
    (also,) = [text for label, text in fields(result) if label == "also"]
    assert ("[" in also and also.endswith("fix: go back")) or "[memory.leak, certain]" in also


def test_what_was_not_read_is_told_and_absent_ranks_are_named_as_absent() -> None:
    coverage = (
        Coverage("trace", 1, 4, ("ranks 1-3: no trace", "0.json: damaged"), ("old format",), "ranks 1-3: no trace"),
    )
    text = replace(report(mismatch()), coverage=coverage)
    rows = fields(text)
    assert ("absent", "ranks 1-3: no trace") in rows and ("unread", "trace: 0.json: damaged") in rows
    assert ("note", "trace: old format") not in rows and ("note", "trace: old format") in fields(text, brief=False)


def test_consequences_are_no_causes() -> None:
    result = full()
    assert result.root_causes[0].cause == "hang.collective_mismatch"
    section = sections(result)["Consequences, not causes"]
    (items,) = section.blocks
    assert isinstance(items, doc.Items) and any("hang.rank_raised" in doc.plain(item) for item in items.items)
    assert "Consequences, not causes" not in sections(report(mismatch()))


def test_the_page_has_every_cause_with_its_status() -> None:
    report = full()
    section = sections(report)["Every cause, and why"]
    tables = [block for block in section.blocks if isinstance(block, doc.Table)]
    tables += [
        inner
        for block in section.blocks
        if isinstance(block, doc.Fold)
        for inner in block.blocks
        if isinstance(inner, doc.Table)
    ]
    rows = [row for table in tables for row in table.rows]
    assert len(rows) == len(report.findings)
    assert {doc.plain(doc.cell_of(row[0]).text) for row in rows} == {"confirmed", "undecided", "ruled out"}
    assert not sections(report, "terminal").get("Every cause, and why")


def test_undecided_causes_are_folded_where_a_root_cause_is_known() -> None:
    section = sections(report(mismatch(), finding("hang.network", status="undecided")))["Every cause, and why"]
    (table,) = (block for block in section.blocks if isinstance(block, doc.Table))
    assert {doc.plain(doc.cell_of(row[0]).text) for row in table.rows} == {"confirmed"}
    titles = [block.title for block in section.blocks if isinstance(block, doc.Fold)]
    assert "1 cause of the same kind could not be decided" in titles


def test_branches_that_lack_the_same_are_folded_with_one_reason() -> None:
    open_causes = [
        Finding(cause=cause, status="undecided", facts=Text("No trace.", missing="a trace"), confidence=0.0)
        for cause in ("overlap.host_bound", "overlap.pause", "overlap.sync_point", "overlap.data_bound")
    ]
    tree = next(
        block
        for block in sections(report(mismatch(), *open_causes))["Fault tree"].blocks
        if isinstance(block, doc.Tree)
    )
    idle = next(
        node
        for node in walk(tree.root)
        if node.name == "or" and len(node.children) == 4 and node.folded and node.mark == "undecided"
    )
    assert doc.plain(idle.brief) == " - all 4 causes undecided: No trace."
    assert next(node for node in walk(tree.root) if node.name == "hang.collective_mismatch").is_open


def walk(node: doc.Node) -> list[doc.Node]:
    return [node, *(below for child in node.children for below in walk(child))]


def test_the_page_is_named_at_the_end() -> None:
    blocks = doc.shown(document(report(mismatch()), brief=True, page="runs/a/report.html").blocks, "terminal")
    rows = [(row.label, row.text) for block in blocks if isinstance(block, doc.Fields) for row in block.rows]
    assert rows == [
        ("page", "runs/a/report.html"),
        ("more", "-v for the fault tree, all evidence and what was ruled out"),
    ]


def test_what_decides_a_suspicion_may_be_its_fix(tmp_path: Path) -> None:
    line = "node1:1:2 [0] init.cc:1034 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
    (tmp_path / "job.log").write_text(f"{line}\n")
    rows = dict(fields(diagnose(tmp_path)))
    assert rows["needed"].startswith("try: ") and "set_device" in rows["needed"]
    (maybe,) = as_json(diagnose(tmp_path))["suspicions"]
    assert maybe["cause"] == "env.duplicate_gpu" and maybe["decide"] == rows["needed"]
