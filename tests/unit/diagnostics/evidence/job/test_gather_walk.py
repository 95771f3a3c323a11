"""Walking a folder: what is looked at, in which order, and what is said about the rest."""

import os
from pathlib import Path

import pytest

from diagnostics.evidence.job.gather import Walk, is_ruled_out
from diagnostics.evidence.limits import Limits


def walked(root, skipped=frozenset(), files=100):
    problems = []
    walk = Walk(root, Limits(files=files), problems, frozenset(skipped))
    return (
        [str(path.relative_to(root)) for path in walk.files()],
        [(problem.file, problem.what) for problem in problems],
        walk,
    )


def make(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x", encoding="utf-8")


@pytest.mark.parametrize("name", ["train.py", "model.safetensors", "README", "events.out.tfevents.1", ".bashrc",
                                  "requirements-dev.txt", "A.PNG"])  # fmt: skip
def test_names_that_are_no_evidence(name):
    assert is_ruled_out(Path(name))


@pytest.mark.parametrize("name", ["train.log", "rank_0.pickle", "trace.json.gz", "slurm-1.out", "notes.txt", "core"])
def test_names_that_may_be(name):
    assert not is_ruled_out(Path(name))


def test_the_order_does_not_depend_on_the_listing(tmp_path):
    make(tmp_path, "b.log", "a/z.log", "a/b/y.log", "c.log", "a.log")
    result, problems, _ = walked(tmp_path)
    assert result == ["a.log", "b.log", "c.log", "a/z.log", "a/b/y.log"]
    assert not problems


def test_what_is_skipped_and_what_is_only_counted(tmp_path):
    make(tmp_path, "train.py", "logs/a.log", "logs/old/b.log", "wandb/c.log", ".git/d.log", "d.log", "weights.bin")
    result, _, walk = walked(tmp_path, {"logs/old"})
    assert result == ["d.log", "logs/a.log"]
    assert walk.seen == {".py": 1, ".log": 2, ".bin": 1}


def test_links_out_of_the_folder_and_to_nowhere_are_told(tmp_path):
    root, outside = tmp_path / "job", tmp_path / "other.log"
    make(tmp_path, "job/a.log", "other.log")
    (root / "inside.log").symlink_to(root / "a.log")
    (root / "out.log").symlink_to(outside)
    (root / "gone.log").symlink_to(tmp_path / "absent")
    (root / "loop").symlink_to(root / "loop")
    result, problems, _ = walked(root)
    assert result == ["a.log"]
    assert problems == [
        ("gone.log", "a link that leads nowhere"),
        ("loop", "a link that leads nowhere"),
        ("out.log", "a link that leads out of the folder: not followed"),
    ]


def test_pipes_are_not_opened_and_sockets_not_mentioned(tmp_path):
    os.mkfifo(tmp_path / "rank_0.json")
    make(tmp_path, "a.log")
    assert walked(tmp_path)[:2] == (["a.log"], [("rank_0.json", "a named pipe: not opened")])


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path):
    make(tmp_path, "train.log/a.txt", "rank_0/b.txt", "rank_1", "plain/c.txt")
    _, problems, _ = walked(tmp_path)
    assert problems == [
        ("rank_0", "a folder in place of a file"),
        ("train.log", "a folder in place of a file"),
    ]


def test_there_is_an_end_to_the_files(tmp_path):
    make(tmp_path, *(f"{n}.log" for n in range(5)))
    result, problems, _ = walked(tmp_path, files=3)
    assert result == ["0.log", "1.log", "2.log"]
    assert problems == [(".", "over 3 files; the rest was not read; raise it with --limit-scale")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_is_closed_is_told(tmp_path):
    make(tmp_path, "closed/a.log", "b.log")
    (tmp_path / "closed").chmod(0)
    try:
        result, problems, _ = walked(tmp_path)
    finally:
        (tmp_path / "closed").chmod(0o755)
    assert result == ["b.log"]
    assert problems == [("closed", "cannot be listed: Permission denied")]
