"""The error of the user's making is one line that ends in what to do."""

from pathlib import Path

import pytest

from diagnostics.contract.errors import DiagnosticsError, ErrorRows


def test_the_line_says_what_happened_and_what_to_do() -> None:
    error = DiagnosticsError("nothing in runs can be used", "name a run folder")
    assert str(error) == "nothing in runs can be used; name a run folder"
    assert (error.what, error.fix) == ("nothing in runs can be used", "name a run folder")
    assert str(DiagnosticsError("no such path")) == "no such path"


def test_rows_of_errors_are_filled_with_figures(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("errors:\n  late: ['{ranks:^} {ranks:is|are} late', 'wait {wait_s:.0f} s']\n")
    errors = ErrorRows(str(tmp_path / "rules.py"), DiagnosticsError)
    late = errors("late", ranks=[1, 2], wait_s=3.4)
    assert (late.what, late.fix) == ("Ranks 1 and 2 are late", "wait 3 s")
    errors.refuse({"late": False})
    with pytest.raises(DiagnosticsError, match="Rank 1 is late; wait 3 s"):
        errors.refuse({"late": True}, ranks=[1], wait_s=3)
