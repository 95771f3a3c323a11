"""Faults of devices: the driver's Xid numbers, and CUDA's own words for them."""

from pathlib import Path
from typing import get_args

import pytest

from diagnostics.analysis.gpu_faults import HARMLESS, WORST, XIDS, After, Event, gpu_faults
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact, RankError
from tests.unit.diagnostics.analysis.calls import fact


def faults(*facts: LogFact, errors: tuple[RankError, ...] = ()) -> tuple[Event, ...]:
    return gpu_faults(Evidence(Path(), Limits(), facts=list(facts), errors=list(errors)))


def test_every_code_says_what_helps_and_the_order_of_what_helps_is_whole() -> None:
    assert set(WORST) == set(get_args(After)) and set(WORST) >= HARMLESS
    assert set(XIDS.values()) <= set(WORST)


def test_a_line_of_the_kernel_names_code_and_device() -> None:
    (event,) = faults(fact("xid", 3, 9, "NVRM: Xid ...", code=79, device="PCI:0000:1a:00"))
    assert event == Event(79, True, "0000:1a:00", 3, "train.log", 9, "NVRM: Xid ...")
    (event,) = faults(fact("xid", 0, code=9999))
    assert (event.after, event.device) == ("reset", "")


def test_the_rank_is_found_by_the_process_that_torchrun_listed() -> None:
    listed = fact("torchrun_list", rank_of={4711: 2})
    assert [event.rank for event in faults(fact("xid", code=48, pid=4711), listed)] == [2]
    assert [event.rank for event in faults(fact("xid", 0, code=48, pid=4711), listed)] == [0], "the line itself counts"
    assert [event.rank for event in faults(fact("xid", code=48, pid=1), listed)] == [None]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "reset"),
        ("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error", None),
        ("uncorrectable NVLink error detected during the execution", "reset"),
        ("Unable to determine the device handle: GPU is lost", "reboot"),
        ("CUDA error: an illegal memory access was encountered", None),
        ("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "reset"),
    ],
)
def test_errors_of_cuda_that_are_the_devices(text: str, after: str | None) -> None:
    error = RankError(1, "error.json", 0, "RuntimeError", text)
    result = [faults(fact("cuda_error", 1, error=text)), faults(errors=(error,))]
    assert [[event.after for event in events] for events in result] == [[after] if after else []] * 2
    for events in result:
        for event in events:
            assert not event.by_driver and event.rank == 1 and event.text in text


@pytest.mark.parametrize(
    "line",
    [
        "xe 0000:2c:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=3",
        "[ 12.3] xe 0000:17:00.0: [drm] Xe device coredump has been created",
        "i915 0000:03:00.0: [drm] GPU HANG: ecode 12:5:85dffffb, in python3 [4711]",
    ],
)
def test_the_drivers_of_intel_name_the_device_that_they_reset(line: str, tmp_path: Path) -> None:
    (tmp_path / "dmesg.log").write_text(line + "\n")
    (event,) = gpu_faults(gather(tmp_path, Limits()))
    assert (event.after, event.device) == ("reset", line.partition(": [drm]")[0].rpartition(" ")[2])
