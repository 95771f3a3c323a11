"""Values out of a line's text: sizes, ranks, numbers, the figures of an out-of-memory message."""

import re

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.logs.patterns import decode, moment, oom_parts, size_bytes

NEW = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.50 GiB is "
    "free. Process 4711 has 512.00 MiB memory in use. Including non-PyTorch memory, this process has 77.00 GiB memory "
    "in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, with 64.00 MiB allocated in private pools "
    "(e.g., CUDA Graphs), and 5.00 GiB is reserved by PyTorch but unallocated."
)
OLD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity; 14.00 GiB already allocated; "
    "12.00 MiB free; 14.50 GiB reserved in total by PyTorch)"
)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("1.50 GiB", 3 * GIB // 2), ("20.00 MiB", 20 << 20), ("512 bytes", 512), ("8 B", 8), ("3KB", 3072),
        ("1 TiB", 1 << 40), ("1.2.3 GiB", None), ("many", None), ("9" * 20 + " GiB", None), (". B", None),
    ],
)  # fmt: skip
def test_sizes_as_torch_writes_them(text, bytes_):
    assert size_bytes(text) == bytes_


@given(st.integers(0, 10**6), st.sampled_from("KMGT"))
@settings(max_examples=60)
def test_units_are_binary_with_and_without_the_i(number, unit):
    assert (
        size_bytes(f"{number} {unit}iB") == size_bytes(f"{number}{unit}B") == number * 1024 ** ("KMGT".index(unit) + 1)
    )


def test_an_out_of_memory_message_of_a_new_torch():
    assert oom_parts(NEW) == {
        "gpu": 3, "requested_bytes": 2 * GIB,
        "total_bytes": int(79.15 * GIB), "free_bytes": 3 * GIB // 2, "listed_bytes": 512 << 20,
        "listed_processes": 1, "in_use_bytes": 77 * GIB, "allocated_bytes": 70 * GIB, "private_pool_bytes": 64 << 20,
        "unused_bytes": 5 * GIB,
    }  # fmt: skip


def test_an_out_of_memory_message_of_an_old_torch():
    assert oom_parts(OLD) == {
        "gpu": 0, "requested_bytes": 20 << 20,
        "total_bytes": int(15.78 * GIB), "allocated_bytes": 14 * GIB, "free_bytes": 12 << 20,
        "reserved_bytes": int(14.5 * GIB),
    }  # fmt: skip
    assert oom_parts("nothing of the kind") == {}


def decoded(pattern, text, kind="any"):
    match = re.search(pattern, text)
    assert match is not None
    return decode(kind, match)


def test_numbers_are_numbers_and_names_are_texts():
    pattern = r"rank (?P<rank>\S+) group (?P<group>\S+) seq (?P<seq>\S+)(?: op (?P<op>.*))?"
    assert decoded(pattern, "rank 3 group 7 seq -1 op all_reduce ") == {
        "rank": 3, "group": "7", "seq": -1, "op": "all_reduce",
    }  # fmt: skip
    assert decoded(pattern, "rank 3 group 7 seq 1") == {"rank": 3, "group": "7", "seq": 1}, "what is absent has no key"


def test_an_endless_number_stays_one():
    assert decoded(r"seq (?P<seq>\d+)", "seq " + "9" * 400)["seq"] == int("9" * 18)
    assert decoded(r"(?P<op>\w+)", "x" * 900)["op"] == "x" * 500


def test_bytes_are_written_plainly_or_with_a_unit():
    assert decoded(r"got (?P<size_bytes>[\d.]+ ?\w+)", "got 2.00 GiB")["size_bytes"] == 2 * GIB
    assert decoded(r"got (?P<size_bytes>\d+)", "got 77")["size_bytes"] == 77
    assert decoded(r"got (?P<size_bytes>\d+)", "got " + "9" * 30)["size_bytes"] is None


@pytest.mark.parametrize(("text", "ranks"), [("1, 3", [1, 3]), ("0-3,7", [0, 1, 2, 3, 7]), ("none", []), ("5-3", [])])
def test_lists_of_ranks(text, ranks):
    assert decoded(r"tasks (?P<ranks>.*)", f"tasks {text}")["ranks"] == ranks


def test_a_list_of_ranks_has_an_end():
    assert len(decoded(r"tasks (?P<ranks>.*)", "tasks 0-9999999,0-9999999")["ranks"]) <= 200_002


def test_the_figures_of_an_out_of_memory_line_are_among_its_fields():
    fields = decoded(r"Tried to allocate (?P<requested_bytes>[\d.]+ \w+)", NEW, "cuda_oom")
    assert (fields["requested_bytes"], fields["gpu"], fields["in_use_bytes"]) == (2 * GIB, 3, 77 * GIB)


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("[rank0]: 2026-11-30 12:00:01,125 INFO", 1_796_040_001.125),
        ("[rank3]:[E1130 12:00:01.123456 ProcessGroupNCCL.cpp:616]", 1_796_040_001),
        ("11/30/2026 12:00:01 - INFO - step 1", 1_796_040_001),
        ("Nov 30 12:00:01 node1 kernel:", 1_796_040_001),
        ("11/30 12:00:01 - mmengine - INFO - Epoch", 1_796_040_001),
        ("step 11/30 took 12:00:01", None),
        ("2026-11-30T12:00:01.125000Z x", 1_796_040_001.125),
        ("2026-11-30T12:00:01+02:00 x", 1_796_032_801),
        ("E1399 12:00:01", None),
        ("13/30/2026 12:00:01", None),
        ("12:00:01 INFO", None),
    ],
)
def test_times_as_loggers_write_them(text: str, at_s: float | None) -> None:
    assert moment(text, 1_790_000_000) == at_s
