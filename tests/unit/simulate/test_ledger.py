"""Storages are entered once, struck out when they go, followed when they are resized; what each part held at most."""

from collections import Counter

import torch
from hypothesis import given, settings, strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from dtk.simulate.ledger import Event, Ledger, highest
from dtk.simulate.mirror import simulated_group
from dtk.simulate.torch_internals import propagation_ignored

MIB = 2**20


def ledger() -> Ledger:
    return Ledger(lambda: ("forward", 0), lambda tensor: "activations")


def bytes_in_use(book: Ledger) -> int:
    return sum(change for _, change, _ in book.events)


def test_views_share_and_frees_count():
    with FakeTensorMode(), ledger() as book:
        a = torch.empty(MIB)
        view = a.view(2, -1)[0]
        assert bytes_in_use(book) == 4 * MIB
        a.add_(1)
        b = a * 2
        assert bytes_in_use(book) == 8 * MIB
        del a, b
        assert bytes_in_use(book) == 4 * MIB  # the view keeps its storage
        del view
        assert bytes_in_use(book) == 0


def test_resized_storages():
    resize = torch.UntypedStorage.resize_
    with FakeTensorMode(), ledger() as book:
        a = torch.empty(MIB)
        a.untyped_storage().resize_(0)
        assert bytes_in_use(book) == 0
        a.untyped_storage().resize_(4 * MIB)
        assert bytes_in_use(book) == 4 * MIB
        del a
        assert bytes_in_use(book) == 0
    assert torch.UntypedStorage.resize_ is resize


def test_shapes_of_dtensors_are_nobodys_memory():
    """Sharding propagation makes whole tensors, which must not be counted as a shard's."""
    with simulated_group(0, 64):
        mesh = init_device_mesh("cpu", (64,))
        with FakeTensorMode(), (book := ledger()), propagation_ignored(book):
            sharded = DTensor.from_local(torch.empty(3, 5, 7), mesh, [Shard(0)])
            before = len(book.events)
            torch._foreach_mul_([sharded], 2.0)
            torch._foreach_add([sharded], [sharded])
            changes = [change for _, change, _ in book.events[before:] if change > 0]
    assert max(changes) == 4 * 3 * 5 * 7


def test_highest_of_each_part():
    events = [
        (0, 100, ("set-up", 0)),
        (1, 50, ("forward", 0)),
        (1, -50, ("forward", 0)),
        (2, 10, ("forward", 1)),
        (-1, 0, ("backward", 1)),
        (2, -10, ("backward", 0)),
        (3, 30, ("backward", 0)),
    ]
    names = ["parameters", "activations", "activations", "gradients"]
    parts = highest(events, 3, lambda entry: names[entry], lambda place: (place[0], str(place[1])))
    assert parts == {
        ("forward", "1"): {"parameters": 100, "activations": 10},
        ("backward", "1"): {"parameters": 100, "activations": 10},
        ("backward", "0"): {"parameters": 100, "gradients": 30},
    }


KINDS = {0: "parameters", 1: "activations", 2: "activations"}


def parts(events: list[Event], begin: int = 0) -> dict[tuple[str, str], dict[str, int]]:
    return highest(events, begin, lambda entry: KINDS.get(entry, "others"), lambda place: (place[0], str(place[1])))


def test_the_peak_of_each_part_by_category() -> None:
    forward, backward = ("forward", 0), ("backward", 0)
    events: list[Event] = [
        (0, 100, forward),
        (1, 10, forward),
        (2, 20, forward),
        (1, -10, backward),
        (-1, 0, backward),
        (0, -100, backward),
    ]
    result = parts(events)
    assert result["forward", "0"] == {"parameters": 100, "activations": 30}
    assert result["backward", "0"] == {"parameters": 100, "activations": 20}


def test_what_began_before_is_held_but_makes_no_part() -> None:
    events: list[Event] = [(0, 100, ("set-up", 0)), (1, 50, ("set-up", 0)), (1, -50, ("set-up", 0))]
    result = parts([*events, (-1, 0, ("forward", 0))], begin=3)
    assert result == {("forward", "0"): {"parameters": 100}}


def test_a_place_that_only_begins_has_what_is_held() -> None:
    result = parts([(0, 8, ("forward", 0)), (-1, 0, ("clip", 0))])
    assert result["clip", "0"] == {"parameters": 8}


@given(
    changes=st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 40), st.integers(0, 2)), max_size=40),
    begin=st.integers(0, 10),
)
@settings(max_examples=80, deadline=None)
def test_the_parts_are_those_of_a_plain_replay(changes: list[tuple[int, int, int]], begin: int) -> None:
    counter: Counter[int] = Counter()
    events: list[Event] = []
    expected: dict[tuple[str, str], int] = {}
    for number, (entry, change, block) in enumerate(changes):
        change = max(change, -counter[entry])  # A storage never holds less than nothing.
        counter[entry] += change
        events.append((entry, change, ("forward", block)))
        if number >= begin:
            part = ("forward", str(block))
            expected[part] = max(expected.get(part, 0), sum(counter.values()))
    result = parts(events, begin)
    assert {part: sum(sizes.values()) for part, sizes in result.items()} == expected
