"""The gates of the built-in trees: each lies below the one that the part of its id before the last dot names."""

from diagnostics.causes.registry import BRANCHES


def test_a_gate_lies_below_the_one_that_its_id_names() -> None:
    above = {branch.id: branch.above for branch in BRANCHES}
    assert above["hang.late"] == "hang" and above["hang"] == ""
    assert set(above.values()) - {""} <= above.keys()


def test_each_gate_has_a_title_of_its_own() -> None:
    titles = [branch.title for branch in BRANCHES]
    assert all(titles) and len(set(titles)) == len(titles)
