"""The collectives around a divergence, as the report draws them."""

from pathlib import Path
from typing import Any

from diagnostics.evidence.model import RankError
from tests.unit.diagnostics.hang.dumps import Job, Op, decided, evidence, write
from tests.unit.diagnostics.report.samples import as_page, finding, report

A, B = Op(line=10), Op("all_gather", 16, 20)


def timeline(folder: Path, played: Job, **more: Any) -> dict[str, Any] | None:
    write(folder, played)
    _, measures = decided(evidence(folder, world_size=len(played.programs), **more))
    return measures["hang"].get("timeline")


def test_it_shows_both_sides_of_the_divergence(tmp_path: Path) -> None:
    original = [A, B] * 20
    drawn = timeline(tmp_path, Job({0: [*original, A], 1: [*original, A], 2: [*original, Op("broadcast", 8, 31)]}))
    assert drawn is not None
    assert (drawn["group"], drawn["positions"]) == ("default_pg", list(range(29, 42)))
    assert list(drawn["ranks"]) == ["0", "1", "2"]
    assert drawn["ranks"]["2"][-1] == {
        "position": 41,
        "op": "broadcast",
        "signature": "[8] float32",
        "state": "pending",
        "where": "/job/train.py:31 in train",
        "place": "train.py:31",
    }
    assert {cell["state"] for cell in drawn["ranks"]["0"][:-1]} == {"completed"}


def test_calls_after_the_divergence_are_bounded_too(tmp_path: Path) -> None:
    tail = [Op("all_gather", size, 40, wait=False) for size in range(1, 60)]
    drawn = timeline(tmp_path, Job({0: [A, B, Op(line=30, wait=False), *tail], 1: [A, B, *tail], 2: [A, B, *tail]}))
    assert drawn is not None
    assert drawn["positions"] == list(range(1, 16))


def test_the_blamed_are_among_64_of_many_ranks(tmp_path: Path) -> None:
    programs = {rank: [A, B, A] for rank in range(90)}
    programs[85] = [A, B, Op("broadcast", 8, 31)]
    drawn = timeline(tmp_path, Job(programs))
    assert drawn is not None
    assert len(drawn["ranks"]) == 64
    assert list(drawn["ranks"])[-1] == "85"


def test_ranks_that_wait_for_one_that_raised(tmp_path: Path) -> None:
    played = Job({0: [A, B, A], 1: [A, B]}, backend="gloo")
    error = RankError(1, "error.json", 0, "ValueError", "bad batch")
    drawn = timeline(tmp_path, played, errors=[error])
    assert drawn is not None
    assert [len(drawn["ranks"][rank]) for rank in "01"] == [3, 2]


def test_a_healthy_job_has_none(tmp_path: Path) -> None:
    assert timeline(tmp_path, Job({0: [A, B], 1: [A, B]})) is None


def cell(position: int, place: str, state: str = "completed") -> dict[str, Any]:
    where = f"/job/work in progress/{place} in f"
    shown = {"op": "all_reduce", "signature": "scalar", "state": state, "where": where, "place": place}
    return {"position": position, **shown}


def test_equal_calls_from_another_line_differ_where_the_ranks_parted_and_only_there() -> None:
    rows = {str(rank): [cell(4, "a.py:9"), cell(5, "a.py:10", "issued")] for rank in range(3)}
    rows["1"] = [cell(4, "b.py:1"), cell(5, "b.py:2")]
    measures = {"hang": {"timeline": {"group": "0", "positions": [4, 5], "ranks": rows}}}
    page = as_page(report(finding("hang.collective_mismatch", ranks=(1,), position=5), measures=measures))
    drawn = page.partition('<table class="dense">')[2].partition("</table>")[0]
    assert drawn.count('<td class="bad"') == 1
    assert drawn.count("<td title=") == 1, "issued, completion not recorded; ranks 0 and 2 share a row"
    assert "<div>b.py:2</div>" in drawn
