"""Model states against the device: confirmed only where they fill it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.analysis.memory.out_of_memory import ran_out
from diagnostics.causes.memory.model_states import decide
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.analysis.memory.test_model_size import paper
from tests.unit.diagnostics.causes.memory.oom_texts import TRUE_DEMAND, job_of


def out_of_memory(folder: Path, size: ModelSize) -> JobMemory:
    """An A100 with 39.59 GiB that is full of tensors."""
    evidence = gather(job_of(folder, TRUE_DEMAND), Limits())
    return JobMemory(evidence, size, {3: RankMemory(3)}, ran_out=ran_out(evidence))


def test_states_that_do_not_fit_are_confirmed_with_what_sharding_saves(tmp_path):
    finding = decide(out_of_memory(tmp_path, paper("ddp", 1)))
    assert finding.status == "confirmed"
    assert finding.ranks == tuple(range(64))
    text = text_of(finding)
    assert "112 GiB" in text.summary
    assert text.remedies[0].saves == "110 GiB of 112 GiB"
    assert decide(out_of_memory(tmp_path, paper("zero3", 64))).status == "ruled_out"


def test_without_a_device_or_a_model_it_stays_open(tmp_path):
    job = out_of_memory(tmp_path, paper("ddp", 1))
    job.ran_out = [replace(record, total_bytes=None) for record in job.ran_out]
    finding = decide(job)
    assert finding.status == "undecided" and "112 GiB on each rank" in text_of(finding).summary
    unknown = decide(out_of_memory(tmp_path, ModelSize(64, "")))
    assert unknown.status == "undecided"
    assert "optimizer" in text_of(unknown).missing


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 15.77 GiB "
    "of which 110.00 MiB is free. Of the allocated memory {} GiB is allocated by PyTorch, and 20.00 MiB is reserved by "
    "PyTorch but unallocated."
)
PLACING = [
    ("torch/nn/modules/module.py", "to"),
    ("torch/optim/adamw.py", "_init_group"),
    ("torch/nn/parallel/distributed.py", "_ddp_init_helper"),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "_init_sharded_param"),
    ("deepspeed/__init__.py", "initialize"),
    ("accelerate/utils/modeling.py", "set_module_tensor_to_device"),
]


def log_of(file: str, function: str, allocated: str) -> str:
    frames = (("/job/train.py", "main"), (f"/env/lib/python3.11/site-packages/{file}", function))
    lines = ["Traceback (most recent call last):"]
    lines += [line for file, name in frames for line in (f'  File "{file}", line 9, in {name}', "    call()")]
    return "".join(f"[rank1]: {line}\n" for line in (*lines, OOM.format(allocated)))


@pytest.mark.parametrize(("file", "function"), PLACING)
def test_where_a_traceback_ran_out_of_memory_shows_that_the_states_do_not_fit(
    tmp_path: Path, file: str, function: str
) -> None:
    (tmp_path / "train.log").write_text(log_of(file, function, "15.20"))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks, root.where[0].line) == ("memory.model_states", (1,), 9)
    assert function in text_of(root).summary


@pytest.mark.parametrize(
    ("file", "function", "allocated"),
    [
        ("torch/nn/functional.py", "linear", "15.20"),  # A forward pass: its activations, or what lay there before.
        ("torch/autograd/graph.py", "_engine_run_backward", "15.20"),
        ("torch/optim/adamw.py", "step", "15.20"),
        ("torch/nn/modules/module.py", "to", "4.00"),  # Most of the device is held by somebody else.
    ],
)
def test_elsewhere_it_does_not(tmp_path: Path, file: str, function: str, allocated: str) -> None:
    (tmp_path / "train.log").write_text(log_of(file, function, allocated))
    assert "memory.model_states" not in {root.cause for root in diagnose(tmp_path).root_causes}


@pytest.mark.parametrize(
    ("place", "does"),
    [
        (PLACING[0], "to(), which moves model states to the device"),
        (PLACING[1], "_init_group(), which allocates the optimizer states in the first step"),
        (PLACING[2], "_ddp_init_helper(), which allocates DDP's buckets for the gradients"),
    ],
)
def test_what_the_function_does_in_which_memory_ran_out(tmp_path: Path, place: tuple[str, str], does: str) -> None:
    (tmp_path / "train.log").write_text(log_of(*place, "15.20"))
    (root,) = diagnose(tmp_path).root_causes
    assert does in text_of(root).summary
