"""The error of the user's making is one line that ends in what to do."""

from diagnostics.contract.errors import DiagnosticsError


def test_the_line_says_what_happened_and_what_to_do() -> None:
    error = DiagnosticsError("nothing in runs can be used", "name a run folder")
    assert str(error) == "nothing in runs can be used; name a run folder"
    assert (error.what, error.fix) == ("nothing in runs can be used", "name a run folder")
    assert str(DiagnosticsError("no such path")) == "no such path"
