"""Start-ups that never completed: ranks that wait for others, and what failed before the first collective."""

from pathlib import Path

import pytest

from diagnostics.analysis.stall.startup import Startup, StartupFailed, lasted_s, startup
from diagnostics.diagnose import diagnose
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers.start import KIND
from tests.unit.diagnostics.analysis.calls import call, fact, job


def start(rank: int, state: str, alive_s: float = 60.0, worked_s: float = 0.0, world: int = 3) -> LogFact:
    times = {"since_s": 0.0, "alive_s": alive_s, "worked_s": worked_s}
    return fact(KIND, rank, nranks=world, state=state, frames=(), **times)


def test_ranks_that_wait_for_one_that_does_not_move() -> None:
    case = startup(job({}, facts=[start(0, "meets"), start(1, "meets"), start(2, "started")]))
    assert isinstance(case, Startup)
    assert (case.waiting, case.missing, case.stuck, case.waited_s) == ((0, 1), (2,), (2,), 60.0)


def test_a_rank_that_works_on_its_way_is_late_and_one_without_a_trace_is_only_missing() -> None:
    late = startup(job({}, facts=[start(0, "meets"), start(1, "meets"), start(2, "started", worked_s=58.0)]))
    lost = startup(job({}, facts=[start(0, "meets"), start(1, "meets")]))
    for case in (late, lost):
        assert isinstance(case, Startup) and case.missing == (2,) and case.stuck == ()


def test_a_start_that_has_hardly_begun_is_not_stuck() -> None:
    facts = [start(0, "meets", alive_s=2.0), start(1, "meets", alive_s=2.0), start(2, "started", alive_s=2.0)]
    case = startup(job({}, facts=facts))
    assert isinstance(case, Startup) and case.stuck == ()


def test_errors_of_the_store() -> None:
    case = startup(job({}, facts=[fact("store_timeout", 1), fact("nccl_net", 0)]))
    assert isinstance(case, StartupFailed) and [item.kind for item in case.facts] == ["store_timeout"]
    assert startup(job({}, facts=[fact("nccl_net", 0)])) is None
    assert startup(job({0: [call(1)]}, facts=[fact("store_timeout", 1)])) is None, "a collective was issued"


def test_how_long_a_rank_gave_signs_of_life() -> None:
    assert lasted_s(start(0, "meets", alive_s=9.0, worked_s=4.0), "worked_s") == 5.0
    assert lasted_s(start(0, "meets", alive_s=3.0, worked_s=4.0), "worked_s") == 0.0


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        # Pasted without the frames of the launcher.
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
            "failed. See inner exception for details.\n",
            "hang.rendezvous",
        ),
        # The group exists: a rank of it did not come to its first collective.
        (
            "[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
            "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout "
            "after 600000ms, keys: /default_pg/0//cuda//0\n",
            None,
        ),
    ],
)
def test_a_start_up_that_failed_before_and_after_the_ranks_had_met(
    tmp_path: Path, lines: str, cause: str | None
) -> None:
    (tmp_path / "job.log").write_text(lines)
    report = diagnose(tmp_path)
    assert [root_cause.cause for root_cause in report.root_causes] == ([cause] if cause else [])
    assert (report.waiting.absent if report.waiting else ()) == (() if cause else (0,))
