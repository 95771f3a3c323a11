import socket

import pytest

from diagnostics.analysis.processes import usable_cores
from dtk.config import placement as rules
from dtk.config.compose import compose
from dtk.config.placement import check_port, cpu_ranks, host_memory, place
from dtk.config.schema import LauncherConfig, LocalLauncher
from dtk.errors import DtkError
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.single import SingleConfig


def test_a_laptop_without_a_gpu_gets_two_gloo_ranks(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    placement = place(LauncherConfig(), DDPConfig(), cuda_devices=0)
    assert (placement.nproc, placement.device, placement.backend) == (2, "cpu", "gloo")
    assert placement.threads == max(1, usable_cores() // 2)
    assert any("without a GPU" in reason for reason in placement.reasons)


@pytest.mark.parametrize(
    ("typed", "ranks"),
    [
        (["strategy=ddp"], 2),
        (["strategy=3d"], 4),
        (["strategy=hsdp_tp"], 4),
        (["strategy=tp", "parallel.tp=3"], 3),
        (["strategy=tp", "parallel.tp=-1"], 2),
        (["model=moe_tiny", "strategy=moe", "parallel.ep=4"], 4),
        (["strategy=tp", "parallel.tp=32"], 2),
    ],
)
def test_without_a_gpu_the_mesh_says_how_many_ranks_there_are(typed, ranks):
    assert cpu_ranks(compose(typed).config) == ranks


@pytest.mark.parametrize(
    ("own", "launcher", "threads"),
    [
        ("5", LauncherConfig(), 5),
        ("3,2", LauncherConfig(), 3),
        ("many", LauncherConfig(), max(1, usable_cores() // 2)),
        ("5", LauncherConfig(threads=7), 7),
    ],
)
def test_threads_are_the_users_own_unless_configured(own, launcher, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", own)
    placement = place(launcher, DDPConfig(), cuda_devices=0)
    assert placement.threads == threads
    assert ("threads: your OMP_NUM_THREADS" in placement.reasons) == (own != "many" and launcher.threads == "auto")


def test_a_node_of_gpus_gets_one_nccl_rank_each():
    placement = place(LauncherConfig(), DDPConfig(), cuda_devices=8)
    assert (placement.nproc, placement.device, placement.backend) == (8, "cuda", "nccl")


def test_single_is_one_process_everywhere():
    assert place(LauncherConfig(), SingleConfig(), cuda_devices=8).nproc == 1


def test_two_gloo_ranks_may_share_a_gpu():
    placement = place(LauncherConfig(nproc=2, backend="gloo"), DDPConfig(), cuda_devices=1)
    assert (placement.nproc, placement.device, placement.backend) == (2, "cuda", "gloo")


@pytest.mark.parametrize(
    ("launcher", "match"),
    [
        (LauncherConfig(backend="nccl"), "needs a GPU"),
        (LauncherConfig(device="cuda"), "no CUDA device"),
    ],
)
def test_what_is_not_there_is_one_line(launcher, match):
    with pytest.raises(DtkError, match=match):
        place(launcher, DDPConfig(), cuda_devices=0)


def test_more_nccl_ranks_than_devices():
    with pytest.raises(DtkError, match=r"nproc=1"):
        place(LauncherConfig(nproc=2), DDPConfig(), cuda_devices=1)


def test_a_port_in_use():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(DtkError, match="master_port=0 for a free one"):
            check_port(server.getsockname()[1])
    check_port(0)


@pytest.mark.parametrize(
    ("cores", "free_bytes", "nproc", "says"),
    [
        (2, 64 << 30, 1000, r"more than this machine can start: 2 CPU cores here.*launcher\.nproc=32\b"),
        (64, 1 << 30, 8, r"1\.0 GiB of host memory are free.*launcher\.nproc=3\b"),
        (64, 1 << 20, 8, r"launcher\.nproc=1\b.*oversubscribe=true"),
    ],
)
def test_more_ranks_than_the_machine_can_start_are_refused_unless_asked_for(
    cores, free_bytes, nproc, says, monkeypatch
):
    monkeypatch.setattr(rules, "usable_cores", lambda: cores)
    monkeypatch.setattr(rules, "host_memory", lambda: (64 << 30, free_bytes))
    with pytest.raises(DtkError, match=says):
        place(LauncherConfig(nproc=nproc), DDPConfig(), cuda_devices=0)
    assert place(LocalLauncher(nproc=nproc, oversubscribe=True), DDPConfig(), cuda_devices=0).nproc == nproc
    assert place(LauncherConfig(nproc=nproc), DDPConfig(), cuda_devices=0, local_size=nproc).nproc == nproc


def test_a_machine_that_does_not_tell_its_memory_refuses_by_cores_only(monkeypatch, tmp_path):
    monkeypatch.setattr(rules, "usable_cores", lambda: 1)
    monkeypatch.setattr(rules, "host_memory", lambda: host_memory(tmp_path / "none", tmp_path))
    assert place(LauncherConfig(nproc=16), DDPConfig(), cuda_devices=0).nproc == 16
    with pytest.raises(DtkError, match="1 CPU core here"):
        place(LauncherConfig(nproc=17), DDPConfig(), cuda_devices=0)
