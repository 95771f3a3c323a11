"""Faults of devices: by code, by CUDA's own words, and what is a program's fault."""

from pathlib import Path
from typing import get_args

import pytest

from diagnostics.analysis.gpu_faults import WORST, After
from diagnostics.causes.hardware import gpu_fault
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import SURE, text_of
from diagnostics.diagnose import diagnose
from diagnostics.report import overview
from diagnostics.report.model import Report


def said(folder: Path, *lines: str) -> Report:
    (folder / "job.log").write_text("\n".join(("step 1 loss 3.2", *lines, "")))
    return diagnose(folder)


ACA = "[76914.15] amdgpu 0000:1b:00.0: {{1}}[Hardware Error]: {}"
LOGGED = ACA.format("Accelerator Check Architecture events logged")


@pytest.mark.parametrize(
    ("line", "result", "fix"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 79, pid=27, name=python3, GPU has fallen off the bus.", "Xid 79", "reboot"),
        ("NVRM: Xid (PCI:0000:3b:00): 94, Contained: SM (0x1)", "contained memory error", "start the job again"),
        ("NVRM: Xid (PCI:0000:3b:00): 64, row remap failure", "on 0000:3b:00", "replaced"),
        ("NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error", "NVLink", "--gpu-reset"),
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
         "requests a recovery action (Xid 154)", "reboot"),
        ("[rank1]:[E1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread "
         "terminated with exception: CUDA error: uncorrectable ECC error encountered", "Rank 1 used it", "--gpu-reset"),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=7, Ch 1 caused by previous Xid 145", "Xid 145", "--gpu-reset"),
        ("[  9.1] NVRM: GPU at 0000:3b:00.0 has fallen off the bus.", "bus on 0000:3b:00.0", "reboot"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30", "NVLink error on PCI", "reset"),
        ("       NVRM: fallen off the bus and is not responding to commands.", "has fallen off the bus", "reboot"),
        ("[ 84.3] NVRM: GPU6 _kgspLogRpcTimeout: ** GSP Timeout **", "(GSP) does not answer on GPU6", "reboot"),
        ("NVRM: nvAssertOk: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)", "it is reset", "reset"),
        ("NVRM: GPU at PCI:0000:3b:00: RmInitAdapter: [NV_ERR_GPU_IS_LOST] (0x0f) from rpc", "bus", "reboot"),
        ("slurmstepd: error: NVML: Failed to get usage(15): GPU is lost", "has fallen off the bus", "reboot"),
        ("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", "bus", "reboot"),
        ("[  9.1] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:894)", "could not initialise", "reboot"),
        ("HW Exception by GPU node-4 (Agent handle: 0x55) reason :GPU Hang", "GPU node-4", "--gpu-reset"),
        ("[  9.1] amdgpu 0000:3b:00.0: amdgpu: GPU reset begin!", "on 0000:3b:00.0", "--gpu-reset"),
        ("amdgpu 0000:dd:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
         "uncorrectable memory error on 0000:dd:00.0", "--gpu-reset"),
        ("amdgpu 0000:c1:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block", "on 0000:c1", "reset"),
        ("amdgpu 0000:c1:00.0: {3}socket: 0, die: 1, 1 new uncorrectable hardware errors detected in gfx block",
         "uncorrectable memory error on 0000:c1:00.0", "--gpu-reset"),
    ],
)  # fmt: skip
def test_a_fault_and_what_helps(tmp_path: Path, line: str, result: str, fix: str) -> None:
    (root,) = said(tmp_path, line).root_causes
    text = text_of(root)
    assert root.cause == "hardware.gpu_fault" and result in text.summary and fix in text.remedies[0].change


def test_the_worst_of_several_codes_says_what_helps(tmp_path: Path) -> None:
    lines = [f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1" for code in (31, 94, 79, 45)]
    (root,) = said(tmp_path, *lines).root_causes
    assert "reboot" in text_of(root).remedies[0].change and len(root.evidence) == 2


def test_the_launchers_list_names_the_rank_of_a_process(tmp_path: Path) -> None:
    rows = ("  time      : 2026-01-05_10:00:00", "  rank      : 5 (local_rank: 1)", "  exitcode  : -6 (pid: 4711)")
    root = said(tmp_path, "NVRM: Xid (PCI:0000:01:00): 48, pid=4711, name=python3", *rows).root_causes[0]
    assert (root.cause, root.ranks) == ("hardware.gpu_fault", (5,))


@pytest.mark.parametrize("code", [63, 92])
def test_a_warning_ends_no_job(tmp_path: Path, code: int) -> None:
    report = said(tmp_path, f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1")
    (finding,) = (item.finding for item in report.findings if item.finding.cause == "hardware.gpu_fault")
    assert not report.root_causes and "The job continues" in text_of(finding).summary


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_event_that_programs_cause_blames_no_device(tmp_path: Path, code: int) -> None:
    report = said(tmp_path, f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1")
    assert not report.root_causes and report.outcome == "undecided"
    (finding,) = (item.finding for item in report.findings if item.finding.cause == "hardware.gpu_fault")
    assert (
        "usually caused by a program" in text_of(finding).summary and "CUDA_LAUNCH_BLOCKING" in text_of(finding).missing
    )


@pytest.mark.parametrize(
    "line",
    [
        "[  9.1] amdgpu 0000:66:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770)",
        "[  9.1] amdgpu 0000:66:00.0: amdgpu: VM_L2_PROTECTION_FAULT_STATUS:0x00341051",
    ],
)
def test_a_page_fault_of_a_kernel_on_amd_blames_no_device(tmp_path: Path, line: str) -> None:
    (tmp_path / "dmesg.log").write_text(f"{line}\n")
    report = diagnose(tmp_path)
    assert not report.root_causes and report.outcome == "undecided"
    assert "page fault of a kernel on 0000:66:00.0" in overview.headline(report)


def test_an_illegal_access_is_the_ranks_own(tmp_path: Path) -> None:
    line = "terminated with exception: CUDA error: an illegal memory access was encountered"
    root = said(tmp_path, f"[rank1]:[E1 ProcessGroupNCCL.cpp:1] Process group watchdog thread {line}").root_causes[0]
    assert (root.cause, root.ranks) == ("hang.rank_raised", (1,))


XID = "NVRM: Xid (PCI:0000:01:00): 79, pid=2710030, name=python3, GPU has fallen off the bus.\n"


def test_every_need_of_a_fault_has_a_change_and_a_reason() -> None:
    rows = table_beside(gpu_fault.__file__)["texts"]
    assert set(get_args(After)) == set(WORST)
    assert all(fix["change"] and fix["why"] for need in WORST for fix in rows[need]["remedies"])


@pytest.mark.parametrize(("first", "culprits"), [(13, False), (79, True), (None, True)])
def test_a_context_that_hangs_after_a_programs_fault_blames_no_device(
    tmp_path: Path, first: int | None, culprits: bool
) -> None:
    before = [f"NVRM: Xid (PCI:0000:01:00): {first}, Graphics Exception"] if first else []
    report = said(tmp_path, *before, "NVRM: Xid (PCI:0000:01:00): 109, pid=1, errorString CTX SWITCH TIMEOUT")
    assert bool(report.root_causes) == culprits


def test_an_unknown_number_is_a_suspicion(tmp_path: Path) -> None:
    report = said(tmp_path, "NVRM: Xid (PCI:0000:3b:00): 977, whatever")
    (finding,) = (item.finding for item in report.findings if item.finding.cause == "hardware.gpu_fault")
    assert not report.root_causes and finding.verdict == "undecided" and 0 < finding.confidence < SURE


def test_no_action_after_a_fault_that_is_over(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert not said(tmp_path, line).root_causes


def test_a_fault_in_a_job_that_ended_in_order_did_not_end_it(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 94, Contained: SM (0x1)"
    assert said(tmp_path, line).root_causes
    report = said(tmp_path, line, "Training complete.")
    (finding,) = (item.finding for item in report.findings if item.finding.cause == "hardware.gpu_fault")
    assert not report.root_causes and "still ended normally" in text_of(finding).summary


@pytest.mark.parametrize("bank", ["aca entry[00].STATUS=0xbaa000000000080b", "ACA[01/08].STATUS=0xfe00000000000000"])
def test_an_uncorrected_error_in_a_bank_of_amd_is_suspected(tmp_path: Path, bank: str) -> None:
    report = said(tmp_path, LOGGED, ACA.format(bank))
    (finding,) = (item.finding for item in report.findings if item.finding.cause == "hardware.gpu_fault")
    assert not report.root_causes and finding.suspected and "not corrected on 0000:1b:00.0" in text_of(finding).summary


@pytest.mark.parametrize(
    "line",
    [
        LOGGED,
        ACA.format("aca entry[00].STATUS=0x9c2040000000011b"),
        "amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 1, 3 new correctable hardware errors detected in umc block",
        "amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 1, 3 new deferred hardware errors detected in umc block",
    ],
)
def test_corrected_errors_of_a_device_of_amd_are_noted(tmp_path: Path, line: str) -> None:
    report = said(tmp_path, line)
    (finding,) = (item.finding for item in report.findings if item.finding.cause == "hardware.gpu_fault")
    assert not report.root_causes and "that were corrected, or that" in text_of(finding).summary
    assert any("were corrected, or that" in note for note in report.notes)


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c1:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c1:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 1, 3 uncorrectable hardware errors detected in total in umc block",  # noqa: E501
        "{1}[Hardware Error]: event severity: corrected",
        "mce: [Hardware Error]: Machine check events logged",
    ],
)
def test_other_lines_of_these_drivers_name_no_fault(tmp_path: Path, line: str) -> None:
    report = said(tmp_path, line)
    (finding,) = (item.finding for item in report.findings if item.finding.cause == "hardware.gpu_fault")
    assert not report.root_causes and not finding.evidence


RAISED = ("[rank2]: Traceback (most recent call last):", '[rank2]:   File "/src/fit.py", line 31, in fit')
LIST = "  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 2710030)"


@pytest.mark.parametrize(
    ("raised", "more", "cause"),
    [
        ("KeyError: 'labels'", (), "hang.rank_raised"),
        ("KeyError: 'labels'", (LIST,), "hardware.gpu_fault"),  # The kernel names its process.
        ("RuntimeError: CUDA error: unspecified launch failure", (), "hardware.gpu_fault"),
        ("torch.distributed.DistBackendError: NCCL error: remote process exited", (), "hardware.gpu_fault"),
    ],
)
def test_an_exception_that_no_device_causes_is_not_a_fault_s(
    tmp_path: Path, raised: str, more: tuple[str, ...], cause: str
) -> None:
    report = said(tmp_path, XID.strip(), *RAISED, f"[rank2]: {raised}", *more)
    assert report.root_causes[0].cause == cause
    assert [root.cause for root in report.root_causes].count("hardware.gpu_fault") == (cause != "hang.rank_raised")
