"""The line between the parent and its ranks: it arrives as it was sent."""

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from dtk.bench.bandwidth import OPERATIONS
from dtk.bench.model import Spec, key_of, loads

SPECS = st.builds(
    Spec,
    operations=st.lists(st.sampled_from(list(OPERATIONS)), max_size=5).map(tuple),
    sizes_bytes=st.lists(st.integers(1, 1 << 40), max_size=5).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    device=st.sampled_from(["cpu", "cuda"]),
    backend=st.sampled_from(["gloo", "nccl"]),
    passes=st.integers(0, 100),
    warm_up=st.integers(0, 100),
    calls=st.integers(1, 1000),
    seconds=st.floats(0.1, 1e6),
    timeout_s=st.floats(1, 1e6),
)


@settings(max_examples=50, deadline=None)
@given(SPECS)
def test_a_launch_is_read_as_it_was_written(spec: Spec) -> None:
    assert loads(spec.dumps()) == spec and "\n" not in spec.dumps()


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"operations": 3}'])
def test_a_line_that_is_no_launch_is_refused(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        loads(text)


def test_a_cell_is_named_so_that_both_parts_can_be_read_back() -> None:
    operation, size = key_of("all_reduce", 1024).split()
    assert (operation, int(size)) == ("all_reduce", 1024)
