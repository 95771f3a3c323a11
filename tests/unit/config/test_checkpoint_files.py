"""Sizes and checksums of a checkpoint: what was written is taken, whatever else is there is refused."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract.artifacts import CHECKPOINT_INFO
from dtk.config import checkpoint_files
from dtk.config.checkpoint_files import describe_files, refuse_damaged
from dtk.errors import DtkError

FILES = st.dictionaries(
    st.from_regex(r"__[0-9]_[0-9]\.distcp", fullmatch=True), st.binary(min_size=1, max_size=300), min_size=1, max_size=4
)


@contextmanager
def checkpoint(files: dict[str, bytes]) -> Iterator[Path]:
    """A complete checkpoint with these files."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "checkpoints" / "step_00000002"
        place.mkdir(parents=True)
        for name, content in files.items():
            (place / name).write_bytes(content)
        (place / CHECKPOINT_INFO).write_text(json.dumps({"files": describe_files(place)}))
        yield place


@settings(deadline=None, max_examples=50)
@given(FILES, st.data())
def test_every_changed_byte_is_found_where_all_are_read(files: dict[str, bytes], data: st.DataObject) -> None:
    with checkpoint(files) as place:
        refuse_damaged(place)
        name = data.draw(st.sampled_from(sorted(files)))
        at = data.draw(st.integers(0, len(files[name]) - 1))
        changed = bytearray(files[name])
        changed[at] ^= data.draw(st.integers(1, 255))
        (place / name).write_bytes(changed)
        with pytest.raises(DtkError, match=f"{name} differs from what was written"):
            refuse_damaged(place)


@settings(deadline=None, max_examples=50)
@given(FILES, st.data())
def test_a_file_that_is_gone_or_of_another_length_is_named(files: dict[str, bytes], data: st.DataObject) -> None:
    with checkpoint(files) as place:
        name = data.draw(st.sampled_from(sorted(files)))
        length = data.draw(st.integers(-1, 400).filter(lambda size: size != len(files[name])))
        if length < 0:
            (place / name).unlink()
        else:
            (place / name).write_bytes(bytes(length))
        with pytest.raises(DtkError, match=f"{name} (is missing|has [0-9,]+ bytes instead of)") as caught:
            refuse_damaged(place)
        assert f"rm -r {place}" in str(caught.value)


@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=1, max_size=2000), st.integers(1, 500))
def test_a_large_checkpoint_is_read_in_part_and_its_length_still_counts(content: bytes, budget: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_files, "BUDGET_BYTES", budget)
        patch.setattr(checkpoint_files, "_BLOCK_BYTES", 16)
        with checkpoint({"__0_0.distcp": content}) as place:
            refuse_damaged(place)
            (place / "__0_0.distcp").write_bytes(content + b"x")
            with pytest.raises(DtkError, match="bytes instead of"):
                refuse_damaged(place)


def test_a_list_of_somebody_elses_names_no_file_elsewhere_and_asks_for_no_more_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    monkeypatch.setattr(checkpoint_files, "BUDGET_BYTES", 2 << 20)
    monkeypatch.setattr(checkpoint_files.zlib, "crc32", lambda block, before: read.append(len(block)) or 7)
    with checkpoint({"a": b"1"}) as place:
        for name in ("a", "b"):
            with (place / name).open("wb") as file:
                file.truncate(64 << 20)
        files = {name: {"size_bytes": 64 << 20, "crc32": 7, "stride_bytes": 1} for name in ("a", "b")}
        (place / CHECKPOINT_INFO).write_text(json.dumps({"files": files}))
        read.clear()
        refuse_damaged(place)
        assert sum(read) == 2 << 20
        (place.parent / "secret").write_bytes(b"123")
        files = {"../secret": {"size_bytes": 4, "crc32": 7, "stride_bytes": 1}}
        (place / CHECKPOINT_INFO).write_text(json.dumps({"files": files}))
        with pytest.raises(DtkError, match="secret is missing"):
            refuse_damaged(place)
