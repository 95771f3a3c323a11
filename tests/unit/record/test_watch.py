"""The watch's word when a rank has left before it falls: two real ranks, the order of events is forced."""

import socket

import pytest

from diagnostics.contract.artifacts import ENDED_BY_WATCH, RunPaths, read_verdict
from tests.patience import stretched

RANK = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import WatchConfig
from dtk.record import wrappers
from dtk.record.collectives import CollectiveLog
from dtk.record.ring import Ring
from dtk.record.watch import Watch
rank, case = int(sys.argv[2]), sys.argv[4]
paths = RunPaths(Path(sys.argv[1]))
made = Ring(paths.ring(rank), rank, 2, 0)
made.start()
log = CollectiveLog(made)
wrappers.install(log)
store = dist.TCPStore("127.0.0.1", int(sys.argv[3]), 2, rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
config = WatchConfig(stall_timeout_s=1.5, first_step_timeout_s=1.5)
watch = Watch(config, log, paths, "cpu", progress=lambda: None, dump=lambda: None)
left = paths.root / "left"
if rank == 0:
    # Late to look, as on a machine with too few cores: its peer has left when it judges for the first time.
    judged = watch._tick
    watch._tick = lambda *args: judged(*args) if left.exists() else None
watch.start(store)
dist.barrier()
if rank == 1:
    if case == "differs":
        dist.all_reduce(torch.zeros(2), async_op=True)
    time.sleep(0.6)
    watch.close(failed=case == "failed")
    left.touch()
    time.sleep(30)
if case == "elsewhere":
    time.sleep(30)
if case == "differs":
    dist.all_gather_into_tensor(torch.zeros(6), torch.zeros(3))
dist.barrier()
"""


@pytest.fixture
def verdict(tmp_path, child):
    """Runs a case; what rank 0 found."""

    def run(case):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        paths = RunPaths(tmp_path)
        file = tmp_path / "rank.py"
        file.write_text(RANK)
        start = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0])"
        ranks = [child(start, file, tmp_path, rank, port, case) for rank in range(2)]
        _, error = ranks[0].communicate(timeout=stretched(50))
        assert ranks[0].returncode == ENDED_BY_WATCH, error
        return read_verdict(paths.verdict(0))

    return run


@pytest.mark.timeout(90)
def test_both_sides_of_a_mismatch_are_told_though_one_has_left(verdict):
    result = verdict("differs")
    assert (result.kind, result.position) == ("desync", 2)
    assert "rank 0 called all_gather_into_tensor [3] float32 at rank.py:" in result.reason
    assert "rank 1 called all_reduce [2] float32 SUM at rank.py:" in result.reason
    assert result.culprits == [1], "the program's text has its call under a condition on the rank"


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("case", "how"), [("ended", "exited normally"), ("failed", "failed")])
def test_who_left_is_blamed_by_those_that_wait_for_it(verdict, case, how):
    result = verdict(case)
    assert (result.kind, result.culprits, result.victims) == ("stall", [1], [0])
    assert f": rank 1 {how} before; rank 0 waits in barrier at rank.py:" in result.reason


@pytest.mark.timeout(90)
def test_who_left_is_not_blamed_when_nobody_waits_for_it(verdict):
    result = verdict("elsewhere")
    assert (result.kind, result.culprits) == ("stall", [])
    assert "rank 1" not in result.reason
