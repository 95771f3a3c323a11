"""A few thousand mutated inputs on every run of the tests; the long run is `python -m tests.fuzz.readers`."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.safe_pickle import loads
from tests.fuzz.guided import CORPUS, corpus
from tests.fuzz.readers import ALLOWED, fuzz, readers
from tests.fuzz.seeds import seeds


def test_nothing_but_allowed_errors_escapes(tmp_path: Path) -> None:
    assert fuzz(3000, 7, tmp_path) == {}


def test_every_seed_is_read_by_its_reader(tmp_path: Path) -> None:
    """Mutations of inputs that no reader accepts would test nothing."""
    result = readers()
    owners = {
        "rank_0.pickle": "flight", "rank_1.pkl": "flight", "rank_2.json": "flight", "rank_3.blackbox.json": "flight",
        "rank_4.ring": "ring", "rank5.pt.trace.json": "trace", "rank6.pt.trace.json.gz": "trace",
        "rank_7.snapshot.pickle": "snapshot", "rank_9.txt": "stacks", "pyspy.txt": "stacks",
        "attempt_0_rank_1_error.json": "error", "rank_2_error.json": "error", "out.log": "log",
        "plain.pickle": "safe_pickle", "start_0.json": "start", "watch.json": "watch",
    }  # fmt: skip
    for name, data in seeds(tmp_path).items():
        if name in owners and owners[name] in result:
            path = tmp_path / name
            path.write_bytes(data)
            assert result[owners[name]](path), name


@pytest.mark.parametrize("reader", sorted(path.stem for path in CORPUS.glob("*.zip")))
def test_what_guided_searches_found_is_read_or_refused(reader: str, tmp_path: Path) -> None:
    read = readers()[reader]
    for name, data in corpus(reader):
        (tmp_path / name).write_bytes(data)
        with suppress(*ALLOWED):
            read(tmp_path / name)


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    for start in (b"", b"\x80\x04", b"(", b"]"):
        with suppress(ValueError):
            loads(start + data, Limits())
