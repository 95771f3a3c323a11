"""What the causes of a slow step share: when nothing is decided, what a cause costs, and whose words are shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from diagnostics.analysis.step_profile.overview import Instrument, Overview
from diagnostics.analysis.step_profile.skew import Skew
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import SURE, Finding, text_of
from diagnostics.contract.strategy_traits import StrategyTraits
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run


class View:
    """The figures of an overview that a finding is made of."""

    def __init__(self, step_ms: float = 100.0, **more: Any) -> None:
        self.step_ms, self.unit, self.ranks, self.split, self.run = step_ms, "step", (0, 1, 2), True, None
        self.profiles = [Profile(0, "a.json"), Profile(1, "b.json"), Profile(2, "c.json")]
        self.skew, self.traits = Skew(complete=True), StrategyTraits()
        for name, value in more.items():
            setattr(self, name, value)

    def worth(self, ms: float) -> bool:
        return ms >= 0.02 * self.step_ms


class Profile:
    """One traced rank."""

    def __init__(self, rank: int, file: str) -> None:
        self.rank, self.file, self.is_cut = rank, file, False


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    """Those of a cause with such a row beside it."""
    (tmp_path / "toy.yaml").write_text("""
texts:
  default:
    seen: '{count} buckets'
    summary: '{count} tiny buckets: {cost}.'
    measured: '{cost}'
    remedies:
      - {kind: code, change: merge them, override: strategy.x=1, why: fewer, saves: 'at most {cost}'}
  shown: a detail
""")
    return Texts(str(tmp_path / "toy.py"))


Judge = Callable[..., Finding]


@pytest.fixture
def judged(texts: Texts) -> Judge:
    """Decides a cause that costs so many ms."""

    def judge(view: Any, ms: float, **more: Any) -> Finding:
        return shared.judged(view, shared.costly(view, ms, texts, count=3), texts.phrase("shown"), **more)

    return judge


def test_a_cost_that_is_worth_it_confirms(judged: Judge) -> None:
    finding = judged(View(), 41.0)
    text = text_of(finding)
    assert (finding.status, finding.ranks, finding.confidence) == ("confirmed", (0, 1, 2), 0.9)
    assert finding.cost is not None and (finding.cost.value, finding.cost.unit) == (41.0, "ms per step")
    assert (
        text.summary == "3 tiny buckets: 41.0 ms of 100 ms per step." and text.measured == "41.0 ms of 100 ms per step"
    )
    assert [(item.file, str(item.detail)) for item in finding.evidence] == [("a.json", "a detail")]
    (remedy,) = text.remedies
    assert (remedy.kind, remedy.change, remedy.saves) == ("code", "merge them", "at most 41.0 ms of 100 ms per step")


def test_a_trace_that_ends_in_the_middle_gives_a_suspicion_only(judged: Judge) -> None:
    view = View()
    view.profiles[1].is_cut = True
    finding = judged(view, 41.0)
    assert finding.confidence < SURE and "only read in part" in str(finding.evidence[-1].detail)


def test_a_cost_below_the_share_rules_out_and_says_so(judged: Judge) -> None:
    finding = judged(View(), 1.9)
    assert finding.status == "ruled_out"
    assert text_of(finding).measured == "3 buckets: at most 1.90 ms of 100 ms per step, below 2%"


def test_a_run_of_dtk_gets_the_override(judged: Judge) -> None:
    (remedy,) = text_of(judged(View(run=dtk_run({"strategy": {"name": "ddp"}})), 41.0)).remedies
    assert (remedy.kind, remedy.change) == ("override", "strategy.x=1")
    run = dtk_run({"strategy": {"name": "deepspeed_zero1"}})
    (remedy,) = text_of(judged(View(run=run, traits=StrategyTraits(library="deepspeed")), 41.0)).remedies
    assert remedy.kind == "code"


@given(st.floats(-50, 500))
@settings(max_examples=50)
def test_a_cost_is_at_most_the_step_and_never_below_nothing(ms: float) -> None:
    cost = shared.costly(View(), ms, shared.TEXTS).cost  # type: ignore[arg-type]
    assert 0.0 <= cost.ms <= cost.step_ms == 100.0


def test_what_may_hold_waiting_as_well_is_less_sure(judged: Judge) -> None:
    finding = judged(View(split=False), 41.0)
    assert finding.confidence == 0.7 and "waiting for late ranks is part of the cost" in str(finding.evidence[1].detail)
    assert judged(View(split=False), 41.0, of_transfer=False).confidence == 0.9


def test_the_evidence_is_the_trace_of_the_rank_to_blame(judged: Judge) -> None:
    finding = judged(View(), 41.0, ranks=(2,), victims=(0, 1))
    assert finding.evidence[0].file == "c.json" and (finding.ranks, finding.victims) == ((2,), (0, 1))
    assert shared.others(View(), (2,)) == (0, 1)  # type: ignore[arg-type]


def step_cause(despite_instrument: bool) -> Cause[Overview]:
    """Of the file of a cause without relations of its own."""
    file = str(Path(shared.__file__).with_name("sync_point.yaml"))
    return shared.step_cause(file, lambda view: shared.TEXTS.ruled_out("no_collectives"), (), despite_instrument)


def empty(**more: Any) -> Overview:
    nothing: Any = None
    return replace(Overview([], nothing, nothing, nothing), **more)


@pytest.mark.parametrize(
    ("traced", "summary"), [(False, "There is no profiler trace."), (True, "No profiler trace could be used.")]
)
def test_without_a_trace_that_can_be_used_nothing_is_decided(traced: bool, summary: str) -> None:
    cause = step_cause(False)
    (finding,) = cause.decide(empty(traced=traced))
    assert (finding.cause, finding.status, text_of(finding).summary) == ("overlap.sync_point", "undecided", summary)
    assert "record=full" in text_of(finding).missing


def test_an_instrument_spoils_every_cause_but_its_own() -> None:
    spoilt = empty(profiles=["a trace"], instrument=Instrument((0,), "CUDA_LAUNCH_BLOCKING", "1"))
    (other,), (own,) = step_cause(False).decide(spoilt), step_cause(True).decide(spoilt)
    assert other.status == "undecided" and "nothing is concluded from this trace" in text_of(other).summary
    assert own.status == "ruled_out", "it is decided by the cause itself"


def test_a_guard_answers_before_the_cause() -> None:
    on_cpu = shared.on_cpu("cpu_streams")
    finding = on_cpu(View(on_device=False))  # type: ignore[arg-type]
    assert finding is not None and text_of(finding).summary == "the model runs on the CPU: there are no streams"
    assert on_cpu(View(on_device=True)) is None  # type: ignore[arg-type]
    assert shared.no_collectives(View(calls=[1])) is None  # type: ignore[arg-type]
    none = shared.no_collectives(View(calls=[]))  # type: ignore[arg-type]
    assert none is not None and none.status == "ruled_out"
