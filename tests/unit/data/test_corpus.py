import os
from pathlib import Path

import pytest

from dtk.data.corpus import CHUNK_BYTES, Corpus, is_text, stdlib_corpus, text_corpus
from dtk.errors import DtkError


def text_of(corpus: Corpus) -> bytes:
    return b"".join(piece for piece, _ in corpus.pieces())


def test_stdlib_is_real_source_without_tests() -> None:
    corpus = stdlib_corpus()
    names = [file.name for file in corpus.files]
    assert "argparse.py" in names and "asyncio/events.py" in names
    assert not [name for name in names if {"test", "tests", "idle_test", "site-packages"} & set(name.split("/"))]
    assert 5e6 < sum(file.size_bytes for file in corpus.files) < 5e7
    assert corpus.key() == stdlib_corpus().key()


def test_max_bytes_cuts_the_corpus() -> None:
    assert len(text_of(stdlib_corpus(max_bytes=123_457))) == 123_457
    with pytest.raises(DtkError, match="max_bytes=0"):
        stdlib_corpus(max_bytes=0)


def test_a_python_without_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DtkError, match="no standard library source"):
        stdlib_corpus(root=tmp_path)


def test_folder_is_sorted_and_passes_over_hidden_binary_and_run_folders(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.txt").write_text("c")
    (tmp_path / "b.md").write_text("b\n")
    (tmp_path / "a").write_text("\u00e4\n")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden")
    (tmp_path / "image.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "zeros").write_bytes(bytes(100))
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    for name in ("status.json", "config.yaml", "metrics.jsonl"):
        (run / name).write_text("{}")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "nothing")
    assert text_of(text_corpus(str(tmp_path))) == "\u00e4\nb\nc".encode()


def test_key_follows_content_and_place(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    first = text_corpus(str(tmp_path)).key()
    assert text_corpus(str(tmp_path)).key() == first
    os.utime(file, ns=(0, 0))
    second = text_corpus(str(tmp_path)).key()
    # Unpacked archives have files of one size and one time in several folders.
    (tmp_path / "copy").mkdir()
    other = tmp_path / "copy" / "a.txt"
    other.write_text("two")
    os.utime(other, ns=(0, 0))
    third = text_corpus(str(other)).key()
    assert len({first, second, third, text_corpus(str(file)).key()}) == 3


@pytest.mark.parametrize("content", [b"", b"caf\xe9", "text".encode("utf-16"), b"cut \xe2\x82"])
def test_a_text_file_that_is_not_utf8_text(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    for path in (file, tmp_path):
        with pytest.raises(DtkError, match=r"not UTF-8|holds no text"):
            text_of(text_corpus(str(path)))


def test_missing_path() -> None:
    with pytest.raises(DtkError, match="no such file or folder: /not/here"):
        text_corpus("/not/here")


def test_unreadable_file(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(DtkError, match="cannot read"):
        text_of(text_corpus(str(tmp_path)))


def test_large_files_come_in_pieces_at_line_or_character_borders(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\u20ac euro\n" * (CHUNK_BYTES // 4))
    endless = tmp_path / "endless.txt"
    endless.write_text("\u20ac" * CHUNK_BYTES)
    for file in (lines, endless):
        pieces = list(text_corpus(str(file)).pieces())
        assert b"".join(piece for piece, _ in pieces) == file.read_bytes()
        assert len(pieces) > 2 and all(len(piece) <= CHUNK_BYTES for piece, _ in pieces)
        assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]
        for piece, _ in pieces:
            piece.decode("utf-8")
    assert all(piece.endswith(b"\n") for piece, _ in text_corpus(str(lines)).pieces() if piece)


def test_is_text_looks_at_the_end_too(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * (CHUNK_BYTES - 1) + "\u20ac".encode())
    assert is_text(file)
    file.write_bytes(b"x" * 3 * CHUNK_BYTES + b"\xff")
    assert not is_text(file)
