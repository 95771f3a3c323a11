"""What the process gets back after a simulated step, and what is paused while DDP and DTensor keep their books."""

import gc
import warnings

import pytest
import torch

from dtk.errors import DtkError
from dtk.parallel import regions
from dtk.simulate.ledger import Ledger
from dtk.simulate.torch_internals import Reducer, check_torch, propagation_ignored, undisturbed


class Observer:
    """Hears regions."""

    def enter(self, region: regions.Region) -> None:
        """Nothing."""

    def exit(self, region: regions.Region) -> None:
        """Nothing."""


def test_listeners_random_numbers_and_switches_are_put_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    collects, tf32 = gc.isenabled(), torch.backends.cuda.matmul.allow_tf32
    with pytest.raises(KeyError), undisturbed():
        assert not gc.isenabled()
        regions.observe([Observer()])
        torch.rand(10)
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = not tf32
        raise KeyError
    assert gc.isenabled() == collects
    assert not regions.observed()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cuda.matmul.allow_tf32 == tf32
    assert torch.equal(torch.rand(1), expected)


def test_the_warning_of_views_is_for_the_run() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with undisturbed():
            warnings.warn("FSDP2-wrapped module Block returned a view tensor", stacklevel=1)
            warnings.warn("another one", stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["another one"]


def ledger() -> Ledger:
    return Ledger(lambda: ("forward", 0), lambda tensor: "activations")


def test_whole_numbers_have_values_while_buckets_are_rebuilt() -> None:
    book = ledger()

    class Rebuilds:
        answer = 7

        def __init__(self, fails: bool) -> None:
            self.fails = fails

        def _rebuild_buckets(self) -> bool:
            assert book.host_numbers
            if self.fails:
                raise RuntimeError("no gradient")
            return True

    assert Reducer(Rebuilds(fails=False), book)._rebuild_buckets() is True
    assert not book.host_numbers
    failing = Reducer(Rebuilds(fails=True), book)
    assert failing.answer == 7, "all else is the reducer's own"
    with pytest.raises(RuntimeError, match="no gradient"):
        failing._rebuild_buckets()
    assert not book.host_numbers


def test_the_lock_of_propagation_pauses_the_ledger_and_is_put_back() -> None:
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    book, lock = ledger(), ShardingPropagator._fake_mode_lock  # type: ignore[attr-defined]
    with propagation_ignored(book):
        with ShardingPropagator._fake_mode_lock:  # type: ignore[attr-defined]
            assert book.pause.depth
        assert not book.pause.depth
        with book.pause, ShardingPropagator._fake_mode_lock:  # type: ignore[attr-defined]
            assert book.pause.depth
    assert ShardingPropagator._fake_mode_lock is lock  # type: ignore[attr-defined]


def test_a_torch_that_lacks_what_is_needed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check_torch()
    monkeypatch.delattr(torch._C, "_current_autograd_node")
    with pytest.raises(DtkError, match="it lacks _current_autograd_node"):
        check_torch()
