"""`dtk diagnose` names the cause, the ranks and the line of every fault."""

from importlib.util import find_spec

import pytest

from tests.faults.runs import diagnose, run_fault
from tests.faults.truth import TRUTH, place

pytestmark = [
    pytest.mark.skipif(find_spec("diagnostics.diagnose") is None, reason="dtk diagnose does not exist yet"),
    pytest.mark.timeout(200),
]
CASES = [pytest.param(name, marks=() if truth.ci else pytest.mark.extended) for name, truth in reversed(TRUTH.items())]
"""From the last to the first: another worker makes the runs of `test_faults` from the first on, and they share them."""


@pytest.mark.parametrize("fault", CASES)
def test_cause_ranks_and_line(fault, fault_folder):
    truth = TRUTH[fault]
    code, report = diagnose(run_fault(fault_folder, fault))
    assert report["root_causes"], report["outcome"]
    first = report["root_causes"][0]
    assert code == 1
    assert first["cause"] in truth.causes, first["summary"]
    assert tuple(first["ranks"]) == truth.ranks, first["summary"]
    if named := place(fault):
        file, line = named
        assert any(w["file"].endswith(file) and w["line"] == line for w in first["where"]), first["where"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("fault", "package", "overrides"),
    [
        ("rank0_state_dict", "accelerate", ("strategy=fsdp", "engine=accelerate")),
        ("extra_collective", "deepspeed", ("strategy=deepspeed_zero3",)),
        ("leak", "deepspeed", ("strategy=deepspeed_zero1",)),
    ],
)
def test_another_engine_is_diagnosed_alike(fault, package, overrides, fault_folder):
    pytest.importorskip(package)
    _, report = diagnose(run_fault(fault_folder / package, fault, *overrides))
    first, (file, line) = report["root_causes"][0], place(fault)
    assert (first["cause"], tuple(first["ranks"])) == (TRUTH[fault].causes[0], TRUTH[fault].ranks), first["summary"]
    assert any(w["file"].endswith(file) and w["line"] == line for w in first["where"]), first["where"]


def test_without_a_fault_it_is_healthy(fault_folder):
    run = run_fault(fault_folder, "none", "experiment=smoke", "strategy=ddp", "checkpoint=off")
    code, report = diagnose(run)
    assert (code, report["outcome"], report["root_causes"]) == (0, "healthy", [])
