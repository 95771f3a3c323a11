"""On one CUDA device: what a CPU cannot show. Skipped, with the reason, where there is none."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from diagnostics.contract.artifacts import RunPaths
from tests.cli.command import metrics, only_run, run, status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
TINY = ["model=gpt2_tiny", "data.max_bytes=1000000", "data.sequence_length=64", "train.steps=12", "checkpoint=off"]
ONE_PROCESS = ["launcher.nproc=1", "launcher.device=cuda"]


def trained(folder: Path, *overrides: str) -> tuple[RunPaths, list[dict[str, Any]]]:
    """A run that must finish with a falling loss, and its records of steps."""
    process = run(folder, *TINY, *overrides, timeout_s=230)
    assert process.returncode == 0, process.stdout + process.stderr
    paths = RunPaths(only_run(folder))
    assert status(paths.root)["state"] == "finished"
    records = [record for record in metrics(paths.root) if "loss" in record]
    assert records[-1]["loss"] < records[0]["loss"]
    return paths, records


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_nccl_with_one_rank(tmp_path: Path) -> None:
    _, records = trained(tmp_path, *ONE_PROCESS, "strategy=fsdp", "launcher.backend=nccl")
    for record in records[2:]:
        assert isinstance(record["mfu"], float) or record["mfu_reason"]
        # CUDA's allocator, not the process: a rank with torch loaded has more than this on the host.
        assert 3_000_000 < record["peak_memory_bytes"] < 500_000_000


def test_gloo_with_two_ranks_on_one_device(tmp_path: Path) -> None:
    two = ["launcher.nproc=2", "launcher.device=cuda", "launcher.backend=gloo", "strategy=ddp"]
    _, together = trained(tmp_path / "two", *two)
    _, alone = trained(tmp_path / "one", *ONE_PROCESS, "strategy=single")
    assert [r["loss"] for r in together] == pytest.approx([r["loss"] for r in alone], abs=1e-3)


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_bf16(strategy: str, tmp_path: Path) -> None:
    trained(tmp_path, *ONE_PROCESS, f"strategy={strategy}", "precision=bf16")


def test_compile(tmp_path: Path) -> None:
    _, compiled = trained(tmp_path / "compiled", *ONE_PROCESS, "strategy=fsdp", "train.compile=true")
    _, eager = trained(tmp_path / "eager", *ONE_PROCESS, "strategy=fsdp")
    assert [r["loss"] for r in compiled] == pytest.approx([r["loss"] for r in eager], abs=1e-3)


def test_out_of_memory_leaves_a_snapshot(tmp_path: Path) -> None:
    """8192 samples at once: the first block alone wants hundreds of GB."""
    process = run(
        tmp_path,
        *ONE_PROCESS,
        "model=gpt2",
        "strategy=fsdp",
        "data=synthetic",
        "data.sequence_length=1024",
        "train.global_batch_size=8192",
        "train.micro_batch_size=8192",
        "record=full",
        timeout_s=230,
    )
    assert process.returncode == 1, process.stdout + process.stderr
    paths = RunPaths(only_run(tmp_path))
    record = status(paths.root)
    assert record["state"] == "oom"
    assert "CUDA out of memory" in record["failure"]["reason"]
    assert record["failure"]["region"] == "forward"
    assert paths.memory_snapshot(0).stat().st_size > 1000


def test_telemetry_of_the_device(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    paths, _ = trained(tmp_path, *ONE_PROCESS, "strategy=single", "record.telemetry_every_s=0.1")
    about, *samples = lines(paths.telemetry(0))
    if about["gpu"] is None:
        pytest.skip(f"NVML does not answer here: {about['gpu_reason']}")
    uuid, signals = about["gpu"][0]["uuid"], about["gpu"][0]["signals"]
    assert signals
    devices = [device for sample in samples for device in sample.get("gpu") or []]
    assert devices and {device["uuid"] for device in devices} == {uuid}
    assert all(len(device) > 2 for device in devices)


def test_the_trace_holds_kernels(tmp_path: Path) -> None:
    paths, _ = trained(tmp_path, *ONE_PROCESS, "strategy=fsdp", "record=full")
    with gzip.open(paths.trace(0), "rt") as file:
        events = json.load(file)["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert len(kernels) > 50
    assert all(event["dur"] >= 0 for event in kernels)


@pytest.mark.parametrize("in_file", [False, True])
def test_states_off_the_device_update_alike(in_file: bool, tmp_path: Path) -> None:
    """Pinned host memory and a file, with streams of their own."""
    from functools import partial

    from torch import nn
    from torch.optim import AdamW

    from dtk.parallel.tiers import Tier

    device = torch.device("cuda")
    build = partial(AdamW, lr=0.1, fused=True)
    own, plain = ([nn.Parameter(torch.ones(400, n, device=device)) for n in (300, 7, 500)] for _ in range(2))
    tier = Tier(device, str(tmp_path) if in_file else None)
    paged, optimizer = tier.paged(build)([{"params": own}]), build([{"params": plain}])
    tier.reserve(own, build)
    for step in range(4):
        for p, q in zip(own, plain, strict=True):
            p.grad = torch.randn(p.shape, device=device, generator=torch.Generator(device).manual_seed(step))
            q.grad = p.grad.clone()
        paged.step()
        tier.settle()
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(own, plain, strict=True))
    assert all(paged.state[p]["exp_avg"].device.type == "cpu" for p in own)
