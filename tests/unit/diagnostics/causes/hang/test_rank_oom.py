"""Memory that ran out, in a log that names no rank."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.report import terminal
from diagnostics.report.diagnosis import document

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.10 GiB is free. Of the allocated memory {} GiB is allocated by PyTorch, and {} GiB is reserved by "
    "PyTorch but unallocated.\n"
)


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_memory_that_ran_out_in_a_step_that_was_skipped_ends_no_rank(tmp_path: Path, prefix: str) -> None:
    raised = 'Traceback (most recent call last):\n  File "/job/train.py", line 10, in step\n    y = f(x)\n'
    steps = "".join(f"step {step} loss 1.9\n" for step in range(2, 7))
    text = raised + OOM.format("70.00", "6.00") + steps
    (tmp_path / "job.log").write_text("".join(prefix + line + "\n" for line in text.splitlines()))
    assert "hang.rank_oom" not in [root.cause for root in diagnose(tmp_path).root_causes]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (OOM.format("40.00", "36.00"), "memory.fragmentation"),
        ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB\n", "memory.host"),
    ],
)
def test_there_is_one_root_cause(tmp_path: Path, text: str, cause: str) -> None:
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + text)
    report = diagnose(tmp_path)
    assert ([root.cause for root in report.root_causes], report.outcome) == ([cause], "oom")


def test_a_device_s_figures_alone_do_not_tell_what_took_the_memory(tmp_path: Path) -> None:
    """That one rank differs from its peers is not shown, so it is no more than a suspicion."""
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + OOM.format("70.00", "6.00"))
    report = diagnose(tmp_path)
    assert (report.root_causes, report.outcome) == ((), "oom")
    assert [suspicion.cause for suspicion in report.suspicions] == [
        "memory.activations",
        "memory.leak",
        "memory.model_states",
    ]
    assert report.suspicions[0].speaks_for[0].startswith("tensors hold 70 GiB; 1 step had run before it")
    screen = terminal.render(document(report, brief=True), columns=120, colour=False)
    assert screen.startswith("OUT OF MEMORY: a device ran out of memory")
    assert "[memory.activations]" in screen
    (tmp_path / "job.log").write_text("loading weights\n" + OOM.format("70.00", "6.00"))
    report = diagnose(tmp_path)
    assert [suspicion.cause for suspicion in report.suspicions] == ["memory.model_states", "memory.activations"]
    reasons = [suspicion.speaks_for for suspicion in report.suspicions]
    assert all(reason[0].startswith("tensors hold 70 GiB") for reason in reasons) and reasons[0] != reasons[1]


def test_nccl_s_own_warning_tells_that_the_device_was_full(tmp_path: Path) -> None:
    closed = "n1:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<51159>\n"
    full = "n1:4:5 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
    (tmp_path / "job.log").write_text(closed + full)
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "hang.rank_oom" and "leave NCCL room" in text_of(root).remedies[0].change


def test_the_warning_is_the_reason_of_an_error_that_names_none(tmp_path: Path) -> None:
    full = "n1:4:5 [3] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'\n"
    (tmp_path / "job.log").write_text(full + "RuntimeError: NCCL Error 1: unhandled cuda error\n")
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "hang.rank_oom"
    (tmp_path / "job.log").write_text(full + "Traceback (most recent call last):\nKeyError: 'label'\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.rank_raised"]


def test_memory_that_a_call_of_cuda_did_not_find(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    dist.barrier()\n'
        "RuntimeError: CUDA error: out of memory\n"
    )
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "hang.rank_oom" and "nvidia-smi on that node" in text_of(root).remedies[0].change


def test_an_exit_code_beside_a_line_about_memory_is_no_error_of_another_kind(tmp_path: Path) -> None:
    text = "CUDA out of memory. Tried to allocate 978.00 MiB (GPU 0; 24.00 GiB total capacity; 12.16 GiB already "
    text += "allocated; 0 bytes free; 22.10 GiB reserved in total by PyTorch)"
    launcher = "[ERROR] [launch.py:321:sigkill_handler] ['python3', '--local_rank=0'] exits with return code = 1"
    (tmp_path / "job.log").write_text(f"node-3: torch.cuda.OutOfMemoryError: {text}\nnode-3: {launcher}\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["memory.fragmentation"]


def test_what_may_have_taken_the_memory_is_said_beside_the_rank_that_ran_out(tmp_path):
    (tmp_path / "train.log").write_text(
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/train.py", line 3, in <module>\n'
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.35 GiB. GPU 3 has a total capacity "
        "of 63.42 GiB of which 1.70 GiB is free. Including non-PyTorch memory, this process has 61.70 GiB memory in "
        "use. Of the allocated memory 59.94 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch "
        "but unallocated.\n"
    )
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes] == ["hang.rank_oom"]
    assert "Tried to allocate 4.35 GiB" in text_of(report.root_causes[0]).summary
    assert {suspicion.cause for suspicion in report.suspicions} == {"memory.activations", "memory.model_states"}


def in_step(file: str, function: str) -> str:
    frames = (("/job/train.py", "train"), ("/env/torch/optim/adamw.py", "step"), (file, function))
    lines = [line for file, name in frames for line in (f'  File "{file}", line 9, in {name}', "    call()")]
    lines = [
        "Traceback (most recent call last):",
        *lines,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    ]
    return "".join(f"[rank1]: {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("file", "function", "of_optimizer"),
    [
        ("/env/torch/optim/adamw.py", "_multi_tensor_adamw", True),
        ("/env/torch/utils/_foreach_utils.py", "_group_tensors", True),
        ("/env/bitsandbytes/optim/optimizer.py", "init_state", True),
        ("/job/train.py", "closure", False),
        ("/env/torch/nn/modules/linear.py", "forward", False),
    ],
)
def test_memory_that_ran_out_in_the_optimizer(tmp_path: Path, file: str, function: str, of_optimizer: bool) -> None:
    (tmp_path / "job.log").write_text(in_step(file, function))
    report = diagnose(tmp_path)
    (root,) = report.root_causes
    change = text_of(root).remedies[0].change
    assert (root.cause, root.ranks) == ("hang.rank_oom", (1,))
    assert ("optimizer states" in change) == of_optimizer == ("micro-batch" not in change)
    assert (report.suspicions[0].probability > 0.7) == of_optimizer


CROWDED = (
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB. GPU 5 has a total capacity of 79.1 "
    "GiB of which 2.06 MiB is free. Including non-PyTorch memory, this process has 75.45 GiB memory in use. {}Of the "
    "allocated memory 73.58 GiB is allocated by PyTorch, and 279.13 MiB is reserved by PyTorch but unallocated.\n"
)


@pytest.mark.parametrize(
    ("request_mib", "others", "named"), [(64, 3, True), (64, 0, False), (64, 1, False), (4000, 3, False)]
)
def test_other_processes_on_the_device_are_named_where_they_hold_what_was_missing(
    tmp_path: Path, request_mib: int, others: int, named: bool
) -> None:
    listed = "".join(f"Process {4000 + n} has 540.00 MiB memory in use. " for n in range(others))
    (tmp_path / "job.log").write_text(CROWDED.format(request_mib, listed))
    (root,) = diagnose(tmp_path).root_causes
    assert ("3 of them hold 1.58 GiB" in text_of(root).remedies[0].change) == named
