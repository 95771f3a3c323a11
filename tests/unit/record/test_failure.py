"""What a failing rank leaves behind."""

import json

import pytest

from dtk.errors import DtkError
from dtk.parallel.regions import observe, region
from dtk.record.failure import failure_record, write_failure


class Quiet:
    """An observer, without which regions are not followed."""

    def enter(self, region):
        pass

    def exit(self, region):
        pass


def raised(error):
    try:
        raise error
    except BaseException as problem:
        return problem


def test_the_record_names_the_line_that_raised():
    record = failure_record(raised(ValueError("bad batch")), 3, 1)
    assert (record["type"], record["message"], record["rank"], record["attempt"]) == ("ValueError", "bad batch", 3, 1)
    assert (record["file"], record["function"]) == (__file__, "raised")
    assert record["traceback"].endswith("ValueError: bad batch\n")
    assert not record["user_error"]


def test_an_exception_that_was_never_raised_has_no_line():
    record = failure_record(ValueError("x"), 0, 0)
    assert (record["file"], record["line"], record["function"]) == (None, None, None)


def test_a_chain_is_whole():
    try:
        try:
            raise KeyError("x")
        except KeyError as cause:
            raise ValueError("bad batch") from cause
    except ValueError as error:
        text = failure_record(error, 0, 0)["traceback"]
    assert text.index("KeyError: 'x'") < text.index("ValueError: bad batch")


def test_the_region_in_which_it_failed():
    observe([Quiet()])
    with pytest.raises(ValueError, match="x"), region("backward"):
        raise ValueError("x")
    assert failure_record(ValueError("x"), 0, 0)["region"] == "backward"


def test_the_traceback_goes_to_the_ranks_log(tmp_path, capsys):
    path = tmp_path / "logs" / "error.json"
    path.parent.mkdir()
    assert write_failure(raised(ValueError("api_key=hunter2secret")), path, 2, 0) == 1
    assert json.loads(path.read_text())["rank"] == 2
    errors = capsys.readouterr().err
    assert "Traceback (most recent call last)" in errors
    assert "ValueError" in errors


def test_a_users_error_ends_in_one_line_elsewhere(tmp_path, capsys):
    error = raised(DtkError("a", "b", "c"))
    assert write_failure(error, tmp_path / "error.json", 0, 0) == 2
    assert json.loads((tmp_path / "error.json").read_text())["user_error"]
    assert capsys.readouterr().err == ""


def test_a_disk_that_takes_nothing_hides_no_failure(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert write_failure(raised(ValueError("bad")), tmp_path / "file" / "error.json", 0, 0) == 1
    errors = capsys.readouterr().err
    assert "could not write error.json" in errors
    assert "ValueError: bad" in errors
