import ctypes
import ctypes.util

import pytest
from hypothesis import given, strategies as st

from diagnostics.analysis.environment import values

LIBC = ctypes.CDLL(ctypes.util.find_library("c"))
LIBC.strtoll.restype = ctypes.c_longlong
LIBC.strtoll.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]


@pytest.mark.parametrize(
    ("text", "value", "rest"),
    [
        ("1", 1, ""),
        ("true", 0, "true"),
        ("1k", 1, "k"),
        ("0x10", 16, ""),
        ("010", 8, ""),
        ("09", 0, "9"),
        ("-2", -2, ""),
        ("", 0, ""),
        ("  7 ", 7, " "),
        ("0x", 0, "x"),
        ("4M", 4, "M"),
        ('"1"', 0, '"1"'),
        ("99999999999999999999", 2**63 - 1, ""),
    ],
)
def test_numbers_are_read_as_nccl_reads_them(text, value, rest):
    read = values.number(text)
    assert (read.value, read.rest) == (value, rest)


@given(st.text(alphabet="0123456789abcdefxXkM+- \t.", max_size=24))
def test_numbers_are_those_of_the_c_library(text):
    assert values.number(text).value == LIBC.strtoll(text.encode(), None, 0)


@pytest.mark.parametrize(
    ("text", "level"),
    [("NVL", "NVL"), ("nvl", None), ("2", "PXB"), ("9", "SYS"), ("PCI", None), ("", None), ("0", "LOC"), ("4x", "SYS")],
)
def test_levels_count_only_in_capitals_or_as_old_numbers(text, level):
    assert values.level(text) == level


@pytest.mark.parametrize(
    ("text", "name", "selected"),
    [
        ("eth", "eth0", True),
        ("=eth", "eth0", False),
        ("^docker,lo", "docker0", False),
        ("^docker,lo", "eth0", True),
        ("^=eth0", "eth01", True),
        ("mlx5_1", "mlx5_10", True),
        ("=mlx5_1,mlx5_2", "mlx5_2", True),
    ],
)
def test_names_select_by_prefix_unless_exact(text, name, selected):
    assert values.names(text).selects(name) is selected


def test_the_port_of_an_hca_is_no_part_of_its_name():
    assert values.names("=mlx5_0:1,mlx5_3:2:0", hca=True).names == ("mlx5_0", "mlx5_3")


@pytest.mark.parametrize(
    ("text", "value"), [("Yes", True), ("T", True), ("1", True), ("no", False), ("F", False), ("on", None), ("2", None)]
)
def test_torch_takes_five_words_for_each(text, value):
    assert values.torch_bool(text) is value


def test_tuning_lists_may_be_per_function():
    assert values.tuning("allreduce:ring,tree;broadcast:nvls") == ["ring", "tree", "nvls"]
    assert values.tuning("^NVLS,Tree") == ["NVLS", "Tree"]
