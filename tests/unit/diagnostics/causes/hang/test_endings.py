"""How a rank's ending is told and fixed: every cause has words for what is known of it, and fills them in."""

from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from diagnostics.analysis.stall.endings import FirstEndings
from diagnostics.causes.hang import rank_exited, rank_killed, rank_oom, rank_raised
from diagnostics.causes.hang._endings import Ended
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, Where
from diagnostics.diagnose import diagnose
from diagnostics.evidence.endings import BY_ITSELF, Detail, Ending, Kind, of_error
from diagnostics.evidence.model import Frame, RankError

ITEM = EvidenceItem("log", "job.log", "it ended")
RAISED = Ending(rank=1, file="job.log", line=0, type="ValueError", kind="raised", text="ValueError: bad batch")
AT = (Where(1, "/job/train.py", 12, "step"),)
CAUSES: dict[Kind, ModuleType] = {
    "raised": rank_raised, "oom": rank_oom, "killed": rank_killed, "exited": rank_exited
}  # fmt: skip


def text(end: Ending, where: tuple[Where, ...] = AT, is_dtk_run: bool = False, **more: Any) -> Text:
    """Put an ending into words."""
    case = FirstEndings(end.kind, (end,), (1,), (1,), (0,), None, None, more.pop("model", ""))
    finding = Finding(cause="hang.x", status="confirmed", facts=Text(""), ranks=(1,), victims=(0,), where=where, **more)
    gave_up = where[0] if where and where[0].rank == 0 else None
    return Ended(case, 2, is_dtk_run, gave_up, CAUSES[end.kind]._text).text(finding)


def fix(end: Ending, where: tuple[Where, ...] = AT, is_dtk_run: bool = False) -> Remedy:
    """The best remedy."""
    return text(end, where, is_dtk_run).remedies[0]


def test_every_detail_has_a_change() -> None:
    assert set(CAUSES) == set(BY_ITSELF)
    assert set(get_args(Detail)) - {"host_allocation"} <= {*rank_raised.CHANGES, *rank_oom.CHANGES}


@pytest.mark.parametrize("kind", BY_ITSELF)
@pytest.mark.parametrize("where", [AT, ()])
@pytest.mark.parametrize("detail", get_args(Detail))
def test_every_text_can_be_made(kind: Kind, where: tuple[Where, ...], detail: Detail) -> None:
    result = text(replace(RAISED, kind=kind, detail=detail), where)
    assert result.summary.startswith("Rank 1 ") and result.summary.endswith("Rank 0 waited for it.")
    for remedy in result.remedies:
        assert remedy.kind == "code" and remedy.change and remedy.why
        assert "{" not in remedy.change + remedy.why and "None" not in remedy.change


def test_an_exception_is_fixed_at_its_line() -> None:
    assert fix(RAISED).change == "fix the error at /job/train.py:12"
    in_a_step = fix(replace(RAISED, step=4)).change
    assert in_a_step.endswith("train.py:12; code that catches it to skip a batch must skip it on all ranks")
    assert "the line in its traceback" in fix(RAISED, ()).change
    assert text(RAISED, step=4).summary.startswith("Rank 1 raised ValueError: bad batch (train.py:12) in step 4. ")


def test_what_the_user_gave_to_dtk_is_looked_at_and_not_dtk_s_lines() -> None:
    worker = Frame("/site/dtk/rank/worker.py", 9, "main")
    inside = replace(RAISED, frames=(Frame("/site/dtk/models/gpt.py", 3, "forward"), worker))
    remedy = fix(inside, is_dtk_run=True)
    assert remedy.change.startswith("check what this run passes to dtk (ValueError: bad batch)")
    assert remedy.change.endswith("; it only surfaced at /job/train.py:12")
    for own in ("/job/model.py", "/site/dtk/faults/raised.py"):
        mine = replace(inside, frames=(Frame(own, 3, "forward"), worker))
        assert fix(mine, is_dtk_run=True).change.startswith("fix the error at")


def test_memory_that_ran_out_has_an_override_in_a_run_of_dtk() -> None:
    end = replace(RAISED, kind="oom", text="CUDA out of memory")
    assert [remedy.kind for remedy in text(end, is_dtk_run=True).remedies] == ["override", "code"]
    assert [remedy.kind for remedy in text(end).remedies] == ["code"]
    nccl = replace(end, detail="nccl_memory")
    assert [remedy.kind for remedy in text(nccl, is_dtk_run=True).remedies] == ["code"]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (
            replace(RAISED, kind="exited", text="exit code 3", type="", exit_code=3),
            "find out what ends this process with exit code 3",
        ),
        (replace(RAISED, text="exit code 1", type="", exit_code=1), "find out what ends this process with exit code 1"),
        (
            replace(RAISED, kind="killed", text="SIGSEGV", type="", signal="SIGSEGV"),
            "debug the native code called from /job/train.py:12",
        ),
        (replace(RAISED, kind="killed", text="SIGINT", type="", signal="SIGINT"), "find out what sent SIGINT"),
        (replace(RAISED, kind="killed", text="SIGKILL", type="", signal="SIGKILL"), "check whether the kernel's OOM"),
        (replace(RAISED, kind="killed", signal="SIGKILL", type="", detail="cgroup"), "request more host memory"),
        (replace(RAISED, kind="killed", text="SIGBUS", type="", signal="SIGBUS"), "check df -h /dev/shm"),
        (replace(RAISED, kind="killed", text="SIGUSR1", type="", signal="SIGUSR1"), "check dmesg"),
        (replace(RAISED, text="OSError: [Errno 98] Address already in use"), "end the process that holds the port"),
    ],
)
def test_signals_and_exit_codes(end: Ending, words: str) -> None:
    assert fix(end).change.startswith(words)


def test_a_rank_that_left_in_order_is_told_which_call_it_lacks() -> None:
    end = replace(RAISED, kind="exited", text="exit code 0", type="", exit_code=0)
    result = text(end, (Where(0, "/job/train.py", 30, "finish"),))
    assert "while others still waited. Rank 0 waited for it at train.py:30." in result.summary
    assert result.remedies[0].change.startswith("make all ranks decide together when to stop")
    assert "rank 0 makes one extra call at /job/train.py:30" in result.remedies[0].change


@pytest.mark.parametrize(
    ("model", "words"), [("all_but_0", "the model of rank 0"), ("either", "which one has the wrong model")]
)
def test_a_model_that_differs_is_told_apart(model: str, words: str) -> None:
    result = text(replace(RAISED, detail="model_differs"), model=model)
    assert words in result.summary and "waited" not in result.summary
    assert result.remedies[0].change.startswith("build the same model on every rank before /job/train.py:12")


def test_braces_in_evidence_are_text() -> None:
    end = replace(RAISED, kind="exited", text="{0.__class__}", exit_code=3, type="")
    assert "/job/{at}.py:12" in fix(RAISED, (Where(1, "/job/{at}.py", 12),)).change
    assert "{0.__class__}" in fix(end).change


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("[Errno 98] Address already in use", "end the process that holds the port"),
        ("[Errno 28] No space left on device: '/x'", "free space"),
        ("[enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing file data/1", "free space"),
        ("PytorchStreamReader failed reading zip archive: failed finding central directory", "compare the size"),
        ("Error while deserializing header: HeaderTooLarge", "compare the size"),
        ("Expected to mark a variable ready only once", "use activation checkpointing with use_reentrant=False"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "start nvidia-fabric"),
        (
            "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.25.1\nLast error:\n"
            "Cuda failure 802 'system not yet initialized'",
            "start nvidia-fabric",
        ),
        ("The NVIDIA driver on your system is too old (found version 11040)", "compare nvidia-smi"),
        ("/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister", "let torch find its own NCCL"),
        ("/lib/x.so: undefined symbol: _ZN3c10", "reinstall that library"),
        ("No module named 'flash_attn'", "install the package"),
        ("CUDA error: device-side assert triggered", "look for an index out of range"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "leave memory free"),
        ("Must flatten tensors with uniform requires_grad when use_orig_params=False", "FullyShardedDataParallel("),
        ("environment variable RANK expected, but not set", "start it with a launcher"),
        ("Default process group has not been initialized, please call init_process_group", "call torch.distributed"),
        ("No backend type associated with device type cpu", "move the tensor"),
        ("Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cpu!", "move the"),
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
            "move the model",
        ),
        (
            "aten.cat.default got mixed torch.Tensor and DTensor, need to convert all",
            "pass only DTensors to this operation",
        ),
        ("Cannot copy out of meta tensor; no data!", "materialize the module"),
        (
            "one of the variables needed for gradient computation has been modified by an inplace operation",
            "find the op",
        ),
        ("Trying to backward through the graph a second time", "detach what is carried"),
        ("element 0 of tensors does not require grad and does not have a grad_fn", "look for a loss under"),
        ("Attempting to unscale FP16 gradients.", "keep the parameters in float32"),
        ("401 Client Error: Unauthorized for url: https://huggingface.co/api/models/x", "accept the terms"),
        ("[Errno 5] Input/output error: '/mnt/data/shard-7.tar'", "read that file by hand"),
        ("PytorchStreamWriter failed writing file data/3: file write failed: Input/output error", "free space"),
        # Words alike that mean something else.
        ("the port of the mixer is not in use", "fix the error at"),
        ("size mismatch for head.weight", "fix the error at"),
        ("shape '[2, 3]' is invalid for input of size 7", "fix the error at"),
        ("expected device cuda:0 but got cpu", "fix the error at"),
    ],
)
def test_known_exceptions_have_a_fix_of_their_own(message: str, words: str) -> None:
    end = replace(RAISED, text=f"RuntimeError: {message}", type="RuntimeError")
    remedy = fix(end)
    assert remedy.change.startswith(words) and "{" not in remedy.change.replace('{"use_reentrant": False}', "")


def test_a_fix_is_found_by_what_a_long_message_says_behind_its_first_sentence() -> None:
    message = (
        "The metrics server of this job could not be started, although it was tried several times with some pauses. "
        "code: -98, name: EADDRINUSE, message: address already in use"
    )
    end = of_error(RankError(0, "x.log", 1, "ServerError", message), 0)
    assert "EADDRINUSE" not in end.summary
    assert fix(end).change.startswith("end the process that holds the port")


def test_an_exception_of_a_library_alone_is_shown_at_the_line_that_raised_it(tmp_path: Path) -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "/env/site-packages/megatron/training.py", line 80, in pretrain',
        '  File "/env/site-packages/megatron/core/layers.py", line 12, in build',
        "AssertionError: num_layers should be divisible",
    )
    (tmp_path / "job.log").write_text("".join(f"[rank3]: {line}\n" for line in lines))
    (root,) = diagnose(tmp_path).root_causes
    assert [(place.file, place.line) for place in root.where] == [("/env/site-packages/megatron/core/layers.py", 12)]
