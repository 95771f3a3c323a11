"""The notes of a prediction."""

from pathlib import Path

from dtk.plan.formulas.notes import notes


def test_notes_are_the_rows_that_hold(tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text('notes: {one: "{count:#block}", two: never, three: "under {name}"}')
    rules = {"three": True, "two": 0, "one": [1]}
    assert notes(str(tmp_path / "engine.py"), rules, count=2, name="fsdp") == ("under fsdp", "2 blocks")
