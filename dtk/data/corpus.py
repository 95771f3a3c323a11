"""The files of a corpus, and their text piece by piece in bounded memory."""

import codecs
import hashlib
import os
import platform
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diagnostics.contract.files import table_beside
from dtk.errors import DtkError, Errors, refused

CHUNK_BYTES = 1 << 20  # Chosen: bytes read at a time; a text need not fit in memory.
_errors, _TABLE = Errors(__file__), table_beside(__file__)
TEXT_SUFFIXES = frozenset(f".{suffix}" for suffix in _TABLE["text_suffixes"].split())
"""Suffixes of text files: such a file that is not UTF-8 is an error instead of being skipped."""

_NOT_SOURCE, _RUN_FILES = set(_TABLE["not_source"]), tuple(_TABLE["run_files"])


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a corpus, as it was when the corpus was listed."""

    path: Path
    name: str
    """Path relative to the corpus, with `/`."""
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A sorted list of files. Each file is one document."""

    source: str
    """Where the corpus comes from, for messages and the manifest."""
    files: tuple[SourceFile, ...]
    max_bytes: int | None = None
    """Limit of the total bytes to read; None reads everything."""
    strict: bool = True
    """Whether a file with a text suffix that is not UTF-8 is an error; otherwise it is skipped."""

    def key(self) -> str:
        """Return a key that changes whenever a file is added, removed, moved, resized or rewritten."""
        listing = [(str(file.path.absolute()), file.size_bytes, file.mtime_ns) for file in self.files]
        return hashlib.sha256(repr((listing, self.max_bytes, self.strict)).encode()).hexdigest()

    def pieces(self) -> Iterator[tuple[bytes, bool]]:
        """Yield pieces of at most CHUNK_BYTES, split after a line if possible, and whether each ends a document;
        DtkError if a file cannot be read, or has a text suffix and is not UTF-8.
        """
        rest_bytes = self.max_bytes if self.max_bytes is not None else sum(file.size_bytes for file in self.files) + 1
        for file in self.files:
            if rest_bytes <= 0:
                return
            with refused(f"cannot read {file.path}"):
                if not file.size_bytes:
                    continue
                if not is_text(file.path):
                    if self.strict and (len(self.files) == 1 or file.path.suffix.lower() in TEXT_SUFFIXES):
                        raise _errors("no_text", path=file.path)
                    continue
                for piece, last in _pieces(file.path):
                    yield piece[:rest_bytes], last or len(piece) >= rest_bytes
                    rest_bytes -= len(piece)
                    if rest_bytes <= 0:
                        return


def stdlib_root() -> Path:
    """Return the folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def stdlib_corpus(max_bytes: int | None = None, root: Path | None = None) -> Corpus:
    """Return the source code of the standard library, or of one package in it, without tests (about 11 MB in all);
    DtkError if Python has no source code (frozen or stripped), or max_bytes < 1.
    """
    _errors.refuse({"no_bytes": max_bytes is not None and max_bytes < 1}, size=max_bytes)
    root = root or stdlib_root()
    files = tuple(file for file in _walk(root, _NOT_SOURCE) if file.path.suffix == ".py")
    _errors.refuse({"no_source": not files}, root=root)
    source = f"source of Python {platform.python_version()}'s standard library"
    return Corpus(source=source, files=files, max_bytes=max_bytes, strict=False)


def text_corpus(path: str) -> Corpus:
    """Return one text file, or all text files in a folder, in the order of their names.

    Hidden files and dtk's run folders are skipped, and so are files without a text suffix that are not UTF-8. DtkError
    if the path does not exist, or the folder has no such file.
    """
    root = Path(path).expanduser()
    if root.is_dir():
        files = tuple(_walk(root, set()))
    elif root.is_file():
        files = (_listed(root, root.name),)
    else:
        raise _errors("no_path", path=path)
    _errors.refuse({"empty": not any(file.size_bytes for file in files)}, path=path)
    return Corpus(source=str(root), files=files)


def is_text(path: Path) -> bool:
    """Return whether the whole file is UTF-8 without NUL bytes; stops at the first invalid byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError:
                return False
            if b"\0" in chunk:
                return False
    return not decoder.getstate()[0]


def _walk(root: Path, without: set[str]) -> Iterator[SourceFile]:
    """Yield regular files below root, folder by folder, sorted."""

    def fail(error: OSError) -> None:
        raise DtkError(f"cannot read {error.filename}", error.strerror or str(error)) from None

    for folder, folders, names in os.walk(root, onerror=fail):
        # A run may write below the corpus while its ranks list it; all ranks must list the same files.
        runs = {name for name in folders if all(Path(folder, name, file).exists() for file in _RUN_FILES)}
        folders[:] = sorted(name for name in folders if name not in without | runs and name[0] != ".")
        for name in sorted(name for name in names if name[0] != "."):
            path = Path(folder, name)
            try:
                if stat.S_ISREG(path.stat().st_mode):
                    yield _listed(path, path.relative_to(root).as_posix())
            except OSError:
                continue  # a dangling link


def _listed(path: Path, name: str) -> SourceFile:
    status = path.stat()
    return SourceFile(path, name, status.st_size, status.st_mtime_ns)


def _pieces(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield (piece, whether it is the last) of one file, split after a line, or else between characters."""
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES - len(rest)):
            chunk = rest + chunk
            if len(chunk) < CHUNK_BYTES:
                rest = chunk
                continue
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                cut = len(chunk) - 1
                while cut > 1 and chunk[cut] & 0xC0 == 0x80:  # The end is inside a character.
                    cut -= 1
            yield chunk[:cut], False
            rest = chunk[cut:]
    yield rest, True
