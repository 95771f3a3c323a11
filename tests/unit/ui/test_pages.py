"""The pages as documents: which runs are listed in which order, and what the page of one run says."""

from pathlib import Path

import pytest

from diagnostics.contract.artifacts import Failure, write_json
from diagnostics.report import document as doc
from diagnostics.report.html import render
from dtk.errors import DtkError
from dtk.ui import live, pages
from tests.unit.compare.folders import measures
from tests.unit.plan.samples import plan
from tests.unit.ui.folders import beat, make_run


def texts(block: object) -> str:
    """Everything that a document or block shows, as one text."""
    return render(block) if isinstance(block, doc.Document) else str(block)


def listed(folder: Path, **query: str) -> list[str]:
    page = pages.runs_page(folder, query)
    (section,) = page.blocks
    assert isinstance(section, doc.Section)
    return [
        doc.plain(doc.cell_of(row[0]).text)
        for block in section.blocks
        if isinstance(block, doc.Table)
        for row in block.rows
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    for name, state in (("a-ddp", "finished"), ("b-fsdp", "failed"), ("c-fsdp", "finished")):
        make_run(runs, name, state)
    (runs / "notes").mkdir()
    return runs


def test_filter_by_words_in_name_and_state(folder: Path) -> None:
    assert set(listed(folder)) == {"a-ddp", "b-fsdp", "c-fsdp"}
    assert set(listed(folder, q="FSDP")) == {"b-fsdp", "c-fsdp"}
    assert listed(folder, q="fsdp failed") == ["b-fsdp"]
    assert "[2 finished]" in texts(pages.runs_page(folder, {"q": "finished"}))
    assert listed(folder, q="<nothing>") == [] and "no run matches" in texts(pages.runs_page(folder, {"q": "x"}))


def test_tags_and_sweeps_are_filters(folder: Path) -> None:
    write_json(folder / "a-ddp" / "manifest.json", {"tags": ["h200", "paper"]})
    write_json(folder / "c-fsdp" / "manifest.json", {"tags": ["h200", 3, "<b>\x1b[2J"]})
    record = folder / "sweeps" / "20260101-grid" / "runs.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text('{"event": "opened", "run": "b-fsdp"}\n{"event": "opened", "run": "../c-fsdp"}\n{"torn')
    assert set(listed(folder, tag="h200")) == {"a-ddp", "c-fsdp"}
    assert listed(folder, tag="h200", q="fsdp") == ["c-fsdp"] == listed(folder, tag="h200", sweep="20260101-grid")
    assert set(listed(folder, sweep="20260101-grid")) == {"b-fsdp", "c-fsdp"} and listed(folder, tag="other") == []
    page = texts(pages.runs_page(folder, {"tag": "h200"}))
    assert "[h200 (2)]" in page and "sweep=20260101-grid" in page and "\x1b" not in page and "<b>" not in page
    write_json(folder / "a-ddp" / "manifest.json", {"tags": "h200"})
    assert listed(folder, tag="h200") == ["c-fsdp"], "a manifest that changed is read again"


@pytest.mark.parametrize(("sort", "reverse"), [("name", ""), ("name", "1"), ("state", ""), ("no such key", "")])
def test_sorting(sort: str, reverse: str, folder: Path) -> None:
    names = listed(folder, sort=sort, reverse=reverse)
    expected = {("name", ""): ["a-ddp", "b-fsdp", "c-fsdp"], ("name", "1"): ["c-fsdp", "b-fsdp", "a-ddp"]}
    assert names == expected.get((sort, reverse), names) and len(names) == 3
    assert sort != "state" or names[0] == "b-fsdp"


def test_pages_of_many_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_ROWS", 2)
    assert [len(listed(folder, sort="name", page=page)) for page in ("1", "2", "99", "x", "0")] == [2, 1, 1, 2, 2]
    page = texts(pages.runs_page(folder, {"sort": "name", "q": "d"}))
    assert "page 1 of 2" in page and "/?q=d&amp;sort=name&amp;page=2" in page


def test_no_runs_yet_says_what_to_type(tmp_path: Path) -> None:
    assert "experiment=smoke" in texts(pages.runs_page(tmp_path / "runs", {}))


def test_a_failed_run_says_who_failed_and_why(folder: Path) -> None:
    make_run(folder, "d", "failed", failure=Failure(rank=3, reason="ValueError: <b>bad</b>"))
    page = texts(pages.run_page(folder, "d"))
    assert "rank 3: ValueError: &lt;b&gt;bad&lt;/b&gt;" in page and "<b>" not in page


def test_ranks_that_are_silent_or_behind_stand_out_in_a_live_run(folder: Path) -> None:
    run = make_run(folder, "e", "queued")
    for rank, step, age_s in ((0, 9, 0), (1, 8, 0), (2, 9, 99)):
        beat(run, rank, step, "forward", age_s)
    present = pages.ranks(pages.RunPaths(run), 0.0)
    section = pages._ranks([r for r in pages.ranks(pages.RunPaths(run), pages.time.time()) if present], live=True)
    assert section is not None
    (table,) = section.blocks
    assert isinstance(table, doc.Table)
    assert [doc.cell_of(row[3]).tone for row in table.rows] == ["good", "warn", "bad"]


def test_a_thousand_ranks_are_cells(folder: Path) -> None:
    run = make_run(folder, "f", "finished")
    for rank in (0, 1, *range(40, 140)):
        beat(run, rank, 5, "end")
    beat(run, 41, 4, "backward")
    (section,) = [b for b in pages.run_page(folder, "f").blocks if isinstance(b, doc.Section) and b.title == "Ranks"]
    cells = section.blocks[-1]
    assert isinstance(cells, doc.Tracks) and [name for name, _, _ in cells.rows] == ["0", "32", "64", "96", "128"]
    missing = cells.rows[0][1][2]
    assert missing.hint == "rank 2 left no heartbeat" and missing.colour == "none"
    behind = cells.rows[1][1][9]
    assert behind.hint.startswith("rank 41, step 4, in backward") and behind.colour == "k8"
    assert [end for _, _, end in cells.rows[:2]] == ["step 5", "step 4 to 5"]


def test_of_a_thousand_live_ranks_those_behind_are_named_with_what_they_are_inside(folder: Path) -> None:
    run = make_run(folder, "h", "queued")
    for rank in range(100):
        beat(run, rank, 8 if rank == 41 else 9, "data" if rank == 41 else "backward", 60 if rank == 70 else 0)
    section = pages._ranks(live.ranks(pages.RunPaths(run), pages.time.time()), live=True)
    assert section is not None
    table, _, cells = section.blocks
    assert isinstance(table, doc.Table) and isinstance(cells, doc.Tracks)
    assert [row[:3] for row in table.rows] == [("41", "8", "data"), ("70", "9", "backward")]


def test_what_was_planned_stands_beside_what_was_measured(folder: Path) -> None:
    run = make_run(folder, "g")
    write_json(
        run / "plan.json",
        {"peak_bytes": 1 << 20, "time": {"step_s": 0.5}, "traffic": [{"count": 2, "size_bytes": 2048}]},
    )
    write_json(run / "summary.json", {"figures": {"step_time_s": 0.25, "communicated_bytes_per_step": 2048}})
    page = texts(pages.run_page(folder, "g"))
    assert "1 MiB" in page and "500 ms" in page and "250 ms" in page and page.count("2 KiB") >= 2
    write_json(run / "plan.json", {"traffic": "x", "peak_bytes": "y", "time": 3})
    assert "Plan and actual" not in texts(pages.run_page(folder, "g"))


@pytest.mark.parametrize("name", ["nothing", "..", ".", "", "notes", "../outside", "link"])
def test_only_runs_of_the_folder_are_found(name: str, folder: Path, tmp_path: Path) -> None:
    make_run(tmp_path, "outside")
    (folder / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(DtkError, match="there is no run"):
        pages.run_page(folder, name)


def reported(run: Path, measures: object) -> None:
    """The report that `dtk diagnose` leaves in a run folder."""
    (run / "report").mkdir()
    write_json(run / "report" / "report.json", {"measures": measures})


def test_exposed_communication_is_what_the_report_says_of_the_traces(folder: Path) -> None:
    page = texts(pages.run_page(folder, "a-ddp"))
    assert "record=full profiles some steps" in page and "Where a step goes" not in page
    (folder / "a-ddp" / "traces").mkdir()
    (folder / "a-ddp" / "traces" / "rank_00000.json.gz").write_bytes(b"")
    assert "the traces are being read" in texts(pages.run_page(folder, "a-ddp"))
    reported(folder / "a-ddp", measures(60.0, 20.0, 12.0, 3.0))
    page = texts(pages.run_page(folder, "a-ddp"))
    assert "exposed communication per step, 15% of it" in page and "12 ms" in page and "Where a step goes" in page


@pytest.mark.parametrize(
    "damaged", [None, 7, {"overlap": {"ranks": {"0": {"exposed_ms": "x"}}, "steps": 1}}, {"overlap": 1}]
)
def test_a_damaged_report_shows_no_exposed_communication(damaged: object, folder: Path) -> None:
    reported(folder / "a-ddp", damaged)
    assert "Where a step goes" not in texts(pages.run_page(folder, "a-ddp"))


def test_the_plan_of_a_run_is_a_page(folder: Path) -> None:
    with pytest.raises(DtkError, match="a-ddp has no plan"):
        pages.plan_page(folder, "a-ddp")
    write_json(folder / "a-ddp" / "plan.json", plan().as_json())
    page = texts(pages.plan_page(folder, "a-ddp"))
    assert "under fsdp on 8 ranks" in page and "/run/a-ddp" in page and "reduce_scatter" in page
    assert "ranks a node" not in page, "plan.json does not tell"
    write_json(folder / "a-ddp" / "plan.json", {**plan().as_json(), "traffic": "x"})
    with pytest.raises(DtkError, match="has no plan"):
        pages.plan_page(folder, "a-ddp")
