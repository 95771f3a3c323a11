"""Lets atheris search for inputs that make one reader fail: it follows the branches that an input reaches.

Run it: `pip install atheris`, then `python -m tests.fuzz.guided READER --inputs 100000 --found FOLDER`.

It begins with the honest files of `seeds` and with `corpus/READER.zip`, what earlier searches found. An input that
escapes is put there as well, and every test run reads all of it (`test_fuzz.py`). `--keep FOLDER` puts the small
inputs of a search there that reached new branches.
"""

import argparse
import hashlib
import importlib
import pkgutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
KEPT_BYTES = 2048
KEPT = 150
"""Inputs of one search that are kept, the smallest ones."""


def corpus(reader: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of what is kept for a reader."""
    path = CORPUS / f"{reader}.zip"
    if path.exists():
        with zipfile.ZipFile(path) as kept:
            yield from ((name, kept.read(name)) for name in kept.namelist())


def keep(reader: str, inputs: Iterable[bytes]) -> None:
    """Add inputs to the corpus of a reader, each once."""
    names = {name for name, _ in corpus(reader)}
    CORPUS.mkdir(exist_ok=True)
    with zipfile.ZipFile(CORPUS / f"{reader}.zip", "a", zipfile.ZIP_DEFLATED) as kept:
        for data in inputs:
            name = hashlib.sha256(data).hexdigest()[:16]
            if name not in names:
                kept.writestr(name, data)
                names.add(name)


def search(reader: str, inputs: int, seconds: int, branches: Path) -> None:
    """Search, and end the process: atheris returns to nobody.

    Args:
        reader: its name in `readers()`.
        inputs: how many to try.
        seconds: longest search.
        branches: folder for inputs that reach new branches.
    """
    import atheris

    with atheris.instrument_imports(include=["diagnostics"]):
        from diagnostics import evidence

        for module in pkgutil.walk_packages(evidence.__path__, f"{evidence.__name__}."):
            importlib.import_module(module.name)  # Some are imported only when they are needed.
        from tests.fuzz.readers import ALLOWED, readers
    from tests.fuzz.seeds import seeds

    read = readers()[reader]
    folder = Path(tempfile.mkdtemp(prefix="dtk-fuzz-"))
    begin = folder / "begin"
    begin.mkdir()
    for name, data in [*seeds(folder).items(), *corpus(reader)]:
        (begin / name).write_bytes(data)
    branches.mkdir(parents=True, exist_ok=True)
    path = folder / "input.bin"

    def read_input(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read(path)
        except ALLOWED:
            pass
        except Exception:
            keep(reader, [data])
            print(f"escaped, and kept for {reader}", file=sys.stderr)
            raise

    limits = [f"-runs={inputs}", f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096", "-max_len=65536"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}/", str(branches), str(begin)], read_input)
    atheris.Fuzz()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--found", type=Path, default=Path(tempfile.gettempdir()) / "dtk-fuzz-found")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="put the small inputs of FOLDER into the corpus")
    chosen = parser.parse_args()
    if chosen.keep:
        small = sorted((path for path in chosen.keep.iterdir()), key=lambda path: (path.stat().st_size, path.name))
        keep(chosen.reader, [p.read_bytes() for p in small[:KEPT] if p.stat().st_size <= KEPT_BYTES])
    else:
        search(chosen.reader, chosen.inputs, chosen.seconds, chosen.found / chosen.reader)


if __name__ == "__main__":
    main()
