"""False alarms: jobs with nothing wrong confirm no memory and no overlap cause, whatever they leave behind."""

from pathlib import Path

import pytest

from diagnostics.causes.registry import collect
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import decide
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.dist.healthy_ranks import CASES, WINDOWS
from tests.dist.ranks import run_ranks

pytestmark = pytest.mark.extended
FOUR = ("hsdp",)
TWO = tuple(name for name in CASES if name not in FOUR)
_ROOM_FOR_IMPROVEMENT = frozenset(
    {
        "overlap.communication_bound",  # gloo on two cores: nothing hides
        "overlap.skew",
        "overlap.data_bound",
        "overlap.host_bound",
        "overlap.instrumented",  # it is: every function is traced
    }
)
"""What a loaded machine of two cores really does to a job of a few milliseconds a step."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    run_ranks("tests.dist.healthy_ranks:run", 2, str(folder), TWO)
    run_ranks("tests.dist.healthy_ranks:run", 4, str(folder), FOUR)
    return folder


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("case", sorted(CASES))
def test_nothing_is_confirmed(jobs, case, kind):
    evidence = gather(jobs / f"{case}-{kind}", Limits())
    findings, _ = decide(collect(), evidence, lambda text: None)
    by_cause = {finding.cause: finding for finding in findings if finding.cause.startswith(("memory.", "overlap."))}
    confirmed = [item for item in by_cause.values() if item.status == "confirmed"]
    assert [(item.cause, text_of(item).summary) for item in confirmed if item.cause not in _ROOM_FOR_IMPROVEMENT] == []
    status = {
        name: by_cause[name].status for name in ("memory.full_gather", "memory.leak", "overlap.accumulation_sync")
    }
    if kind == "marked":  # what was recorded was read, and decided
        assert status["memory.leak"] == "ruled_out"
        assert status["overlap.accumulation_sync"] == "ruled_out"
    if "fsdp" in case or case == "hsdp":
        assert status["memory.full_gather"] == "ruled_out"
