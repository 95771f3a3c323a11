import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtk.data.cache import Writer, cached
from dtk.data.corpus import text_corpus
from dtk.data.tokenizer import build_tokenizer
from dtk.data.tokens import Tokens, corpus_tokens
from dtk.errors import DtkError
from tests.patience import stretched

UINT16 = np.dtype(np.uint16)


def numbers(writer: Writer) -> dict[str, Any]:
    for i in range(5):
        writer.append(np.arange(1000) + i)
    return {"made_by": os.getpid()}


def refuse(writer: Writer) -> dict[str, Any]:
    raise AssertionError("built although cached")


def load(path: Path) -> Tokens:
    return corpus_tokens(text_corpus(str(path)), build_tokenizer("byte"))


def test_a_hit_gives_the_same_and_writes_nothing(tmp_path: Path, cache_folder: Path) -> None:
    (tmp_path / "a.txt").write_text("first\n" * 100)
    (tmp_path / "b.txt").write_text("second")
    first = load(tmp_path)
    (file,) = cache_folder.iterdir()
    before = file.stat()
    second = load(tmp_path)
    assert np.array_equal(first.ids, second.ids) and first.about == second.about
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert bytes(first.ids) == b"first\n" * 100 + b"\0second\0"
    assert first.about["bytes"] == 606 and first.about["tokens"] == 608 and len(first.about["sha256"]) == 64
    (tmp_path / "b.txt").write_text("changed")
    assert bytes(load(tmp_path).ids).endswith(b"changed\0")


def test_the_array_is_mapped_and_read_only(cache_folder: Path) -> None:
    values = cached("k", UINT16, numbers).values
    assert cached("k", UINT16, refuse).about == {"made_by": os.getpid()}
    assert values.dtype == UINT16 and len(values) == 5000 and int(values[-1]) == 1003
    assert not values.flags.owndata and not values.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1


@pytest.mark.parametrize("damage", ["cut", "hole", "empty", "overwritten end", "other type"])
def test_a_damaged_file_is_built_again(damage: str, cache_folder: Path) -> None:
    good = np.array(cached("k", UINT16, numbers).values)
    file = cache_folder / "k.bin"
    content = file.read_bytes()
    file.unlink()
    damaged = {
        "cut": content[: len(content) // 2],
        "hole": content[10:],
        "empty": b"",
        "overwritten end": content[:-20] + bytes(20),
        "other type": content.replace(b"<u2", b"<u4"),
    }
    file.write_bytes(damaged[damage])
    assert np.array_equal(cached("k", UINT16, numbers).values, good)
    assert file.read_bytes() == content


def test_a_builder_that_fails_leaves_nothing(cache_folder: Path) -> None:
    def fail(writer: Writer) -> dict[str, Any]:
        writer.append(np.arange(10))
        raise DtkError("bad data")

    with pytest.raises(DtkError, match="bad data"):
        cached("k", UINT16, fail)
    assert list(cache_folder.iterdir()) == []


def test_a_finished_file_is_never_replaced(cache_folder: Path) -> None:
    # Another process finishes first: its readers have the file mapped.
    def slow(writer: Writer) -> dict[str, Any]:
        cached("k", UINT16, numbers)
        inodes.append((cache_folder / "k.bin").stat().st_ino)
        return numbers(writer)

    inodes: list[int] = []
    cached("k", UINT16, slow)
    assert [file.stat().st_ino for file in cache_folder.iterdir()] == inodes


def blocked(folder: Path) -> Path:
    """A path that nobody, root included, can make a folder in."""
    folder.mkdir()
    (folder / "file").write_text("")
    return folder / "file"


def test_an_unwritable_cache_falls_back_to_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked(tmp_path / "x")))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "text.txt").write_text("some text")
    # Through a corpus: the text must be read again from its start for the second place.
    assert bytes(load(tmp_path / "text.txt").ids) == b"some text\0"
    (file,) = (tmp_path / "tmp").glob("dtk-*/*.bin")
    before = file.stat().st_ino
    assert bytes(load(tmp_path / "text.txt").ids) == b"some text\0"
    assert file.stat().st_ino == before


def test_a_disk_that_fills_up_while_writing_falls_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    calls = []

    def full_at_first(writer: Writer) -> dict[str, Any]:
        calls.append(1)
        about = numbers(writer)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return about

    assert len(cached("k", UINT16, full_at_first).values) == 5000
    assert len(list((tmp_path / "tmp").glob("dtk-*/k.bin"))) == 1


def test_no_place_at_all_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked(tmp_path / "x")))
    monkeypatch.setattr(tempfile, "tempdir", str(blocked(tmp_path / "y")))
    with pytest.raises(DtkError, match=r"cannot write the token cache .*XDG_CACHE_HOME"):
        cached("k", UINT16, numbers)


def build_in_child(path: str, ready: Any, results: Any) -> None:
    ready.wait()
    tokens = load(Path(path))
    results.put((len(tokens.ids), tokens.about["sha256"], int(np.asarray(tokens.ids, dtype=np.int64).sum())))


@pytest.mark.timeout(60)
def test_processes_that_build_at_once_agree(tmp_path: Path, cache_folder: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(200_000)))
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(4), context.Queue()
    children = [context.Process(target=build_in_child, args=(str(tmp_path), ready, results)) for _ in range(4)]
    for child in children:
        child.start()
    answers = [results.get(timeout=stretched(30)) for _ in children]
    for child in children:
        child.join(30)
    assert len(set(answers)) == 1
    assert [file.suffix for file in cache_folder.iterdir()] == [".bin"]
    assert answers[0][0] == len(load(tmp_path).ids)
