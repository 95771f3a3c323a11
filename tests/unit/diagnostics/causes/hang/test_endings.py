"""How a rank's ending is fixed: every kind and every detail has words of its own, and what is known fills them."""

from dataclasses import replace
from typing import get_args

import pytest

from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._endings import remedies
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Where
from diagnostics.evidence.endings import BY_ITSELF, Detail, Ending
from diagnostics.evidence.model import Frame

ITEM = EvidenceItem("log", "job.log", "it ended")
RAISED = Ending(1, "raised", "ValueError: bad batch", ITEM, type="ValueError")
AT = (Where(1, "/job/train.py", 12, "step"),)
TABLE = table_beside(_endings.__file__)


def test_every_kind_and_every_detail_has_an_entry() -> None:
    assert set(TABLE["kinds"]) == set(BY_ITSELF)
    assert set(get_args(Detail)) - {"", "host_allocation"} <= set(TABLE["details"])


@pytest.mark.parametrize("kind", BY_ITSELF)
@pytest.mark.parametrize("where", [AT, ()])
@pytest.mark.parametrize("detail", get_args(Detail))
def test_every_text_can_be_made(kind: str, where: tuple[Where, ...], detail: str) -> None:
    end = replace(RAISED, kind=kind, detail=detail)  # type: ignore[arg-type]
    for remedy in remedies(kind, end, where, is_dtk_run=False):  # type: ignore[arg-type]
        assert remedy.kind == "code" and remedy.change and remedy.why
        assert "{" not in remedy.change + remedy.why and "None" not in remedy.change


def test_an_exception_is_fixed_at_its_line() -> None:
    (remedy,) = remedies("raised", RAISED, AT, is_dtk_run=False)
    assert remedy.change == "fix the error at /job/train.py:12; to skip a batch, let all ranks skip it together"
    assert "the place in its log" in remedies("raised", RAISED, (), is_dtk_run=False)[0].change


def test_what_the_user_gave_to_dtk_is_looked_at_and_not_dtk_s_lines() -> None:
    worker = Frame("/site/dtk/rank/worker.py", 9, "main")
    inside = replace(RAISED, frames=(Frame("/site/dtk/models/gpt.py", 3, "forward"), worker))
    (remedy,) = remedies("raised", inside, AT, is_dtk_run=True)
    assert remedy.change.startswith("look at what this run gave to dtk (ValueError: bad batch)")
    assert remedy.change.endswith("; /job/train.py:12 is only where it came up")
    for own in ("/job/model.py", "/site/dtk/faults/raised.py"):
        mine = replace(inside, frames=(Frame(own, 3, "forward"), worker))
        assert remedies("raised", mine, AT, is_dtk_run=True)[0].change.startswith("fix the error at")


def test_memory_that_ran_out_has_an_override_in_a_run_of_dtk() -> None:
    end = replace(RAISED, kind="oom", what="CUDA out of memory")
    assert [remedy.kind for remedy in remedies("oom", end, AT, is_dtk_run=True)] == ["override", "code"]
    assert [remedy.kind for remedy in remedies("oom", end, AT, is_dtk_run=False)] == ["code"]
    nccl = replace(end, detail="nccl_memory")
    assert [remedy.kind for remedy in remedies("oom", nccl, AT, is_dtk_run=True)] == ["code"]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (
            replace(RAISED, kind="exited", what="exit code 3", type="", exit_code=3),
            "find what ends this process with exit code 3",
        ),
        (
            replace(RAISED, kind="killed", what="SIGSEGV", type="", signal="SIGSEGV"),
            "look at the native code behind /job/train.py:12",
        ),
        (replace(RAISED, kind="killed", what="SIGINT", type="", signal="SIGINT"), "look for who sent SIGINT"),
        (
            replace(RAISED, kind="killed", what="SIGKILL", type="", signal="SIGKILL"),
            "most likely the kernel's OOM killer",
        ),
        (
            replace(RAISED, kind="killed", what="SIGKILL", type="", signal="SIGKILL", detail="cgroup"),
            "ask for more host",
        ),
        (replace(RAISED, kind="killed", what="SIGBUS", type="", signal="SIGBUS"), "look at df -h /dev/shm"),
    ],
)
def test_signals_and_exit_codes(end: Ending, words: str) -> None:
    assert remedies(end.kind, end, AT, is_dtk_run=False)[0].change.startswith(words)


def test_a_rank_that_left_in_order_is_told_which_call_it_lacks() -> None:
    end = replace(RAISED, kind="exited", what="exit code 0", type="", exit_code=0)
    gave_up = Where(0, "/job/train.py", 30, "finish")
    (remedy,) = remedies("exited", end, (), False, gave_up)
    assert remedy.change.startswith("let all ranks decide together when to stop")
    assert "rank 0 calls one more at /job/train.py:30" in remedy.change


def test_braces_in_evidence_are_text() -> None:
    end = replace(RAISED, kind="exited", what="{0.__class__}", exit_code=3, type="")
    where = (Where(1, "/job/{at}.py", 12),)
    assert "/job/{at}.py:12" in remedies("raised", RAISED, where, is_dtk_run=False)[0].change
    assert "{0.__class__}" in remedies("exited", end, where, is_dtk_run=False)[0].change


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("[Errno 98] Address already in use", "end the process that holds the port"),
        ("[Errno 28] No space left on device: '/x'", "make room"),
        ("[enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing file data/1", "make room"),
        ("PytorchStreamReader failed reading zip archive: failed finding central directory", "compare the size"),
        ("Error while deserializing header: HeaderTooLarge", "compare the size"),
        ("Expected to mark a variable ready only once", "checkpoint with use_reentrant=False"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "start nvidia-fabric"),
        ("The NVIDIA driver on your system is too old (found version 11040)", "compare nvidia-smi"),
        ("/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister", "let torch find its own NCCL"),
        ("/lib/x.so: undefined symbol: _ZN3c10", "reinstall that library"),
        ("No module named 'flash_attn'", "install the package"),
        ("CUDA error: device-side assert triggered", "look for an index out of range"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "leave memory free"),
        ("Must flatten tensors with uniform requires_grad when use_orig_params=False", "FullyShardedDataParallel("),
        # Words alike that mean something else.
        ("the port of the mixer is not in use", "fix the error at"),
        ("size mismatch for head.weight", "fix the error at"),
        ("shape '[2, 3]' is invalid for input of size 7", "fix the error at"),
        ("expected device cuda:0 but got cpu", "fix the error at"),
    ],
)
def test_known_exceptions_have_a_fix_of_their_own(message: str, words: str) -> None:
    end = replace(RAISED, what=f"RuntimeError: {message}", type="RuntimeError")
    (remedy,) = remedies("raised", end, AT, is_dtk_run=False)
    assert remedy.change.startswith(words) and "{" not in remedy.change.replace('{"use_reentrant": False}', "")
