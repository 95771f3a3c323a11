"""Throws mutated evidence at every reader and counts what escapes.

Run it: `python -m tests.fuzz.readers --inputs 100000 --seed 1`.

A reader may raise OSError and ValueError, nothing else; gathering may raise DiagnosticsError, nothing else. An
input is named by its seed and number, so that `--only NUMBER` repeats it.
"""

import argparse
import gzip
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.evidence import safe_pickle
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.job.registry import readers as all_readers
from diagnostics.evidence.limits import Limits, head
from diagnostics.evidence.model import Owner
from diagnostics.evidence.reader import Reader, Source
from diagnostics.evidence.stacks import activity
from diagnostics.evidence.stacks.dumps import where
from tests.fuzz.seeds import seeds

LIMITS = Limits(whole_bytes=8 << 20, stream_bytes=32 << 20)
ALLOWED = (OSError, ValueError)
NASTY = (
    b"", b"\0", b"\xff" * 8, b"[" * 300, b"{" * 300, b"1e999", b"-1", b"NaN", b"null", b"[]", b"{}", b'"', b"true",
    b"99999999999999999999", b"\x80\x04", b"cposix\nsystem\n", b"\x93", b"R.", b"r\xff\xff\xff\x7f", b"2", b"\n", b"\r",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x00", b"[[[]]]", b"\xed\xa0\x80", b"%s", b"../", b"[rank3]: ",
    b"Traceback (most recent call last):\n",
)  # fmt: skip


def mutate(data: bytes, others: list[bytes], random_: random.Random) -> bytes:
    """The data with one to eight small damages: bytes, cuts, repeats, pieces of other files, words that hurt."""
    out = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 3, 8))):
        at, end = sorted((random_.randrange(len(out) + 1), random_.randrange(len(out) + 1)))
        kind = random_.randrange(8)
        if kind == 0 and out:
            out[at % len(out)] = random_.randrange(256)
        elif kind == 1 and out:
            out[at % len(out)] ^= 1 << random_.randrange(8)
        elif kind == 2:
            del out[at : min(end, at + random_.choice((1, 4, 64, 1 << 20)))]
        elif kind == 3:
            out[at:at] = random_.choice(NASTY)
        elif kind == 4:
            out[at : at + random_.choice((1, 2, 8))] = random_.choice(NASTY)
        elif kind == 5:
            out[at:at] = out[at : min(end, at + 200)] * random_.choice((1, 2, 20))
        elif kind == 6:
            other = random_.choice(others)
            begin = random_.randrange(len(other))
            out[at:at] = other[begin : begin + random_.choice((4, 64, 1000))]
        else:
            del out[at:]
    return bytes(out[: 1 << 20])


def readers() -> dict[str, Callable[[Path], object]]:
    """Every reader as a function of a path."""
    by_kind = {reader.kind: _loader(reader) for reader in all_readers()}
    return by_kind | {"safe_pickle": lambda path: safe_pickle.loads(path.read_bytes(), LIMITS)}


def _loader(reader: Reader) -> Callable[[Path], object]:
    def load(path: Path) -> object:
        contents = reader.open(Source(path, path.name, head(path), LIMITS, Owner(0)))
        loaded = [handle.load() for handle in contents.handles]
        loaded = [list(value) if hasattr(value, "__next__") else value for value in loaded]
        seen = [(activity.doing(dump), where(dump)) for dump in contents.stacks]
        return loaded or seen or contents.errors or contents.facts

    return load


def gathering(path: Path) -> object:
    """`gather` of the folder that a file lies in; None where it is refused in words."""
    try:
        return gather(path.parent, LIMITS)
    except DiagnosticsError:
        return None


def fuzz(inputs: int, seed: int, folder: Path, only: int | None = None) -> Counter[str]:
    """Runs the inputs; reader and exception -> how often it escaped. Prints the first of each."""
    honest = seeds(folder)
    names, contents = list(honest), list(honest.values())
    result = readers()
    crashes: Counter[str] = Counter()
    for number in range(inputs) if only is None else (only,):
        random_ = random.Random(f"{seed}/{number}")
        name = names[number % len(names)]
        data = mutate(gzip.decompress(honest[name]) if name.endswith(".gz") else honest[name], contents, random_)
        if name.endswith(".gz"):
            data = gzip.compress(data, 1)
            if random_.random() < 0.3:
                data = mutate(data, contents, random_)
        path = folder / name
        path.write_bytes(data)
        kinds = _readers_for(path, result, random_)
        for kind in kinds:
            _read_mutated(kind, result[kind], path, ALLOWED, crashes, f"seed {seed}, input {number}, {name}")
        _read_mutated("gather", gathering, path, (), crashes, f"seed {seed}, input {number}, {name}")
        path.unlink()
    return crashes


def _readers_for(path: Path, result: dict[str, Callable[[Path], object]], random_: random.Random) -> list[str]:
    """The readers that would be asked, and one that would not."""
    start = head(path)
    kinds = [reader.kind for reader in all_readers() if reader.recognise(start)]
    return sorted({*kinds, random_.choice(sorted(result))})


def _read_mutated(
    kind: str,
    read: Callable[[Path], object],
    path: Path,
    allowed: tuple[type[Exception], ...],
    crashes: Counter[str],
    what: str,
) -> None:
    began_s = time.monotonic()
    try:
        read(path)
    except allowed:
        pass
    except Exception as problem:
        key = f"{kind}: {type(problem).__name__}"
        if not crashes[key]:
            print(f"--- {what}: {key}", file=sys.stderr)
            traceback.print_exc()
        crashes[key] += 1
    if time.monotonic() - began_s > 20:
        crashes[f"{kind}: over 20 s"] += 1
        print(f"--- {what}: {kind} took {time.monotonic() - began_s:.0f} s", file=sys.stderr)


def main() -> int:
    """Command line; exit code 1 when anything escaped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="repeat one input by its number")
    chosen = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        crashes = fuzz(chosen.inputs, chosen.seed, Path(folder), chosen.only)
    count = chosen.inputs if chosen.only is None else 1
    took_s = time.monotonic() - began_s
    print(f"{count:,} inputs, seed {chosen.seed}: {crashes.total()} escapes {dict(crashes)} in {took_s:.0f} s")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
