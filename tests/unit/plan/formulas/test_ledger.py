"""Bytes in use: buffers with holders, the highest use and what it consisted of, copies and rounding."""

from hypothesis import given, settings, strategies as st

from dtk.plan.formulas.tape import Ledger


def test_a_buffer_is_freed_by_its_last_holder() -> None:
    ledger = Ledger()
    buffer = ledger.allocate("activations", 100)
    assert buffer.hold() is buffer
    buffer.drop()
    assert ledger.total_bytes == 100
    buffer.drop()
    assert ledger.total_bytes == 0
    assert ledger.peak_bytes == 100


def test_the_peak_keeps_its_parts_and_its_region() -> None:
    ledger = Ledger()
    ledger.change("parameters", 10)
    logits = ledger.allocate("logits", 5)
    ledger.enter("backward")
    gradient = ledger.allocate("gradients", 7)
    logits.drop()
    ledger.enter("optimizer")
    gradient.drop()
    memory = ledger.memory(3, host_bytes=11)
    assert memory.at_peak_bytes == {"parameters": 10, "logits": 5, "gradients": 7}
    assert (memory.rank, memory.region, memory.host_bytes, memory.peak_bytes) == (3, "backward", 11, 22)
    assert memory.by_region_bytes == {"forward": 15, "backward": 22, "optimizer": 17}


def test_a_region_without_an_allocation_has_what_is_held() -> None:
    ledger = Ledger()
    ledger.change("parameters", 4)
    ledger.enter("clip")
    ledger.enter("optimizer")
    assert ledger.by_region["clip"] == ledger.by_region["optimizer"] == 4


def test_rounding_is_a_category_of_its_own_and_comes_back() -> None:
    ledger = Ledger(granularity_bytes=512)
    small, exact = ledger.allocate("activations", 1), ledger.allocate("gradients", 1024)
    assert ledger.in_use["allocator slack"] == 511
    assert ledger.total_bytes == 512 + 1024
    assert ledger.peak_bytes == 1536
    small.drop()
    exact.drop()
    assert ledger.total_bytes == 0 == sum(ledger.in_use.values())


def test_copies_are_freed_with_their_buffer_and_note_no_peak() -> None:
    ledger = Ledger(granularity_bytes=8)
    buffer = ledger.allocate("gradients", 10)
    ledger.copy(buffer, 3)
    assert (buffer.copies, ledger.total_bytes, ledger.peak_bytes) == (4, 4 * 16, 16)
    ledger.copy(buffer, 1)
    assert (buffer.copies, ledger.total_bytes) == (8, 8 * 16)
    buffer.drop()
    assert ledger.total_bytes == 0


@given(
    sizes=st.lists(st.tuples(st.sampled_from(["activations", "gradients"]), st.integers(1, 2000)), max_size=30),
    granularity=st.sampled_from([1, 8, 512]),
)
@settings(max_examples=60, deadline=None)
def test_the_parts_add_up_at_the_peak(sizes: list[tuple[str, int]], granularity: int) -> None:
    ledger = Ledger(granularity)
    held = []
    for number, (category, size) in enumerate(sizes):
        held.append(ledger.allocate(category, size))  # type: ignore[arg-type]
        assert ledger.total_bytes == sum(-(-buffer.size_bytes // granularity) * granularity for buffer in held)
        if number % 3 == 2:
            held.pop(0).drop()
    assert ledger.memory(0, 0).peak_bytes == ledger.peak_bytes == max(ledger.by_region.values(), default=0)
