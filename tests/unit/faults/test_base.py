"""Where and when a fault is due."""

import pytest

from dtk.faults.base import FAULTS, FaultyLoop
from tests.unit.faults.conftest import Faulty


def test_a_fault_strikes_its_step_on_its_rank_and_starts_there(faulty: Faulty) -> None:
    here, elsewhere = faulty("leak", step=3), faulty("leak", step=3, rank=1)
    assert [here.strikes(step) for step in (2, 3, 4)] == [False, True, False]
    assert [here.started(step) for step in (2, 3, 4)] == [False, True, True]
    assert not elsewhere.strikes(3) and elsewhere.started(3)
    assert here.step_number == 1 and here.run() and here.step_number == 5


def test_a_subclass_is_entered_and_prepared_before_the_first_step(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtk.faults.base.FAULTS", dict(FAULTS))

    class Toy(FaultyLoop, name="toy"):
        def _prepare(self) -> None:
            self.prepared_at = self.state.step

    from dtk.faults import base

    assert base.FAULTS["toy"] is Toy
    loop = faulty("leak")
    loop.__class__ = Toy
    assert loop.run() and (loop.prepared_at, loop.state.step) == (0, 4)
