"""Run folders: their names, what is written into them, how they are closed."""

import errno
import json
import re
import stat
from dataclasses import replace

import pytest
import yaml

from diagnostics.contract.artifacts import Failure, RunPaths, read_status
from diagnostics.contract.origins import Origins
from dtk.errors import DtkError
from dtk.parallel.regions import observe, region
from dtk.record.run_folder import (
    begin,
    close,
    create,
    describe,
    failure_record,
    name_run,
    unwritable,
    write_failure,
    writing,
)


def test_a_name_says_model_strategy_layout_and_ranks(make_config):
    config = make_config()
    assert re.fullmatch(r"\d{8}-\d{6}-gpt2_tiny-ddp-w4-[0-9a-f]{4}", name_run(config, 4))
    config = replace(config, parallel=replace(config.parallel, tp=2, pp=4))
    assert "-gpt2_tiny-ddp-tp2-pp4-w8-" in name_run(config, 8)
    assert len({name_run(config, 8)[-4:] for _ in range(20)}) > 1


def test_a_folder_is_new_and_closed_to_others(make_config, tmp_path):
    paths = create(tmp_path / "runs" / name_run(make_config(), 2))
    assert paths.root.parent == tmp_path / "runs"
    assert not stat.S_IMODE(paths.root.stat().st_mode) & 0o022


def test_a_place_that_takes_no_folder_is_one_line(make_config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DtkError, match="cannot write to the runs folder"):
        create(tmp_path / "file" / name_run(make_config(), 2))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), "it is read-only"),
        (PermissionError(errno.EACCES, "Permission denied"), "no permission"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("odd"), "odd"),
    ],
)
def test_why_a_folder_cannot_be_written(tmp_path, error, why):
    assert why in str(unwritable(tmp_path, error))
    with pytest.raises(DtkError, match="runs_folder=/path"), writing(tmp_path):
        raise error


def test_secrets_are_masked_in_all_records(tmp_path):
    paths = RunPaths(tmp_path)
    plain = {"tracker": {"api_key": "hunter2"}, "seed": 3}
    describe(paths, {"run_id": "r", "schema_version": 1}, plain, ["tracker.api_key=hunter2", "seed=3"], Origins())
    texts = [path.read_text() for path in (paths.config, paths.overrides, paths.origins)]
    assert not any("hunter2" in text for text in texts)
    assert yaml.safe_load(texts[0])["seed"] == 3
    assert json.loads(paths.manifest.read_text())["run_id"] == "r"
    assert not list(tmp_path.glob("*.tmp*"))


def test_an_attempt_is_opened_and_closed(tmp_path):
    paths = RunPaths(tmp_path)
    begin(paths, 1)
    assert (read_status(paths.status).state, read_status(paths.status).attempt) == ("running", 1)
    failure = Failure(rank=3, reason="killed by SIGKILL", exit_code=-9)
    close(paths, "failed", 1, reason="rank 3", step=7, failure=failure)
    status = read_status(paths.status)
    assert (status.state, status.exit_code, status.reason, status.step, status.attempt) == ("failed", 1, "rank 3", 7, 1)
    assert status.failure.rank == 3
    close(paths, "finished", 0)
    assert read_status(paths.status).step == 7, "the step stays where nobody says another"


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_status_that_cannot_be_read_is_written_anew(tmp_path, text):
    paths = RunPaths(tmp_path)
    if text is not None:
        paths.status.write_text(text)
    close(paths, "hung", 1)
    assert read_status(paths.status).state == "hung"


def test_a_full_disk_does_not_hide_how_it_ended(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    close(RunPaths(tmp_path / "file"), "failed", 1)
    assert "could not write" in capsys.readouterr().out


@pytest.mark.parametrize(("failed_in", "stands_at"), [(3, 2), (1, 0), (0, 0), (None, 7)])
def test_a_failed_run_stands_at_the_step_before_the_one_that_failed(tmp_path, failed_in, stands_at):
    paths = RunPaths(tmp_path)
    begin(paths, 0)
    close(paths, "running", 0, step=7)
    close(paths, "failed", 1, failure=Failure(rank=0, reason="ValueError", step=failed_in))
    assert read_status(paths.status).step == stands_at
    close(paths, "hung", 1, step=5, failure=Failure(rank=0, reason="stuck", step=3))
    assert read_status(paths.status).step == 5, "what is said counts"


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
