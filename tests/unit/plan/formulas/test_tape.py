"""What autograd keeps and frees, on graphs of a few operations; bytes in use, by hand."""

from hypothesis import given, settings, strategies as st

from dtk.plan.formulas.tape import Buffer, Ledger, Tape, Value


def tape() -> Tape:
    return Tape(Ledger())


def walked_back(tape: Tape, loss: Value) -> dict[str, Buffer]:
    """Seed the loss with a gradient of its size; the gradients that parameters get."""
    buffers: dict[str, Buffer] = {}
    tape.seed(loss, tape.ledger.allocate("activations", loss.size_bytes))
    tape.backward(buffers.__setitem__)
    return buffers


def test_what_is_saved_is_held_until_its_own_backward_is_over() -> None:
    result = tape()
    x = result.operation(8, [], parameters=[("first", 4)])
    y = result.operation(16, [(x, 8)], saves=[x], kept_bytes=3, parameters=[("second", 2)])
    x.drop()
    y.drop()
    assert result.ledger.total_bytes == 8 + 3, "the output is saved by nobody"
    gradients = walked_back(result, y)
    assert {name: buffer.size_bytes for name, buffer in gradients.items()} == {"second": 2, "first": 4}
    assert result.ledger.total_bytes == 6, "only the parameters' gradients are left"


def test_nothing_is_saved_while_a_block_is_not_recorded() -> None:
    result = tape()
    result.recording = False
    x = result.operation(8, [], kept_bytes=100)
    assert result.ledger.peak_bytes == 108, "what would be kept is made all the same"
    x.drop()
    assert result.ledger.total_bytes == 0
    assert not result.nodes and not result.uses


def test_a_view_shares_its_buffer() -> None:
    result = tape()
    x = result.operation(8, [])
    view = result.operation(0, [(x, 0)])
    assert view.buffer is x.buffer and view.size_bytes == 8
    x.drop()
    assert result.ledger.total_bytes == 8
    view.drop()
    assert result.ledger.total_bytes == 0


def test_a_shared_gradient_is_added_to_in_place_where_nobody_else_holds_it() -> None:
    result = tape()
    x = result.operation(8, [], parameters=[("weight", 1)])
    left, right = result.operation(8, [(x, 8)]), result.operation(8, [(x, 8)])
    total = result.operation(8, [(left, 0), (right, 0)])
    for value in (x, left, right, total):
        value.drop()
    result.ledger.enter("backward")
    walked_back(result, total)
    # The gradient of the sum is passed on to both sides; each side then makes one of 8 bytes, added to the first.
    assert result.ledger.by_region["backward"] == 8 + 8 + 8
    assert result.ledger.total_bytes == 1


def test_a_gradient_that_somebody_holds_is_not_added_to() -> None:
    result = tape()
    x = result.operation(8, [], parameters=[("weight", 1)])
    branch = result.operation(8, [(x, 8)])
    total = result.operation(8, [(x, 0), (branch, 0)])
    for value in (x, branch, total):
        value.drop()
    result.ledger.enter("backward")
    received = result.ledger.allocate("activations", 8)
    result.seed(total, received.hold())  # As a stage of a pipeline keeps what it received.
    result.backward(lambda name, buffer: None)
    assert result.ledger.by_region["backward"] == 8 + 8 + 8, "received, the branch's gradient, their sum"
    assert result.ledger.total_bytes == 8 + 1


def test_a_parameter_that_is_used_twice_gets_one_gradient_at_its_last_use() -> None:
    result = tape()
    x = result.operation(8, [], parameters=[("tied", 5)])
    y = result.operation(8, [(x, 8)], parameters=[("tied", 5)])
    x.drop()
    y.drop()
    heard: list[int] = []
    result.seed(y, result.ledger.allocate("activations", 8))
    result.backward(lambda name, buffer: heard.append(buffer.size_bytes), down_to=1)
    assert heard == [] and list(result.pending) == ["tied"]
    result.backward(lambda name, buffer: heard.append(buffer.size_bytes))
    assert heard == [5] and not result.pending


def test_narrow_gradients_are_widened_when_the_operation_is_over() -> None:
    plain, narrow = tape(), tape()
    for result, narrow_bytes in ((plain, 0), (narrow, 50)):
        x = result.operation(
            8, [], parameters=[("weight", 100)], narrow_bytes=narrow_bytes, backward_workspace_bytes=30
        )
        x.drop()
        result.ledger.enter("backward")
        walked_back(result, x)
        assert result.ledger.total_bytes == 100
    assert plain.ledger.by_region["backward"] == 8 + 30 + 100
    assert narrow.ledger.by_region["backward"] == 50 + 100, "workspace and incoming gradient are gone by then"


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
    kept = []
    for number, (category, size) in enumerate(sizes):
        kept.append(ledger.allocate(category, size))  # type: ignore[arg-type]
        assert ledger.total_bytes == sum(-(-buffer.size_bytes // granularity) * granularity for buffer in kept)
        if number % 3 == 2:
            kept.pop(0).drop()
    assert ledger.memory(0, 0).peak_bytes == ledger.peak_bytes == max(ledger.by_region.values(), default=0)
