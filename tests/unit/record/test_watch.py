"""The watch's word when a rank has left before it falls (two real ranks, the order of events is forced), and none about
long phases in which one rank works (time is simulated)."""

import socket
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
from torch._C._distributed_c10d import HashStore

from diagnostics.contract.artifacts import ENDED_BY_WATCH, RunPaths, read_verdict
from dtk.config.schema import WatchConfig
from dtk.record import activity
from dtk.record.activity import COMPILING, Activity
from dtk.record.collectives import CollectiveLog
from dtk.record.ring import Ring
from dtk.record.watch import Watch

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
        _, error = ranks[0].communicate(timeout=50)
        assert ranks[0].returncode == ENDED_BY_WATCH, error
        return read_verdict(paths.verdict(0))

    return run


@pytest.mark.timeout(90)
def test_both_sides_of_a_mismatch_are_told_though_one_has_left(verdict):
    found = verdict("differs")
    assert (found.kind, found.position) == ("desync", 2)
    assert "rank 0 called all_gather_into_tensor [3] float32 at rank.py:" in found.reason
    assert "rank 1 called all_reduce [2] float32 SUM at rank.py:" in found.reason
    assert found.culprits == [1], "the program's text has its call under a condition on the rank"


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("case", "how"), [("ended", "exited normally"), ("failed", "failed")])
def test_who_left_is_blamed_by_those_that_wait_for_it(verdict, case, how):
    found = verdict(case)
    assert (found.kind, found.culprits, found.victims) == ("stall", [1], [0])
    assert f": rank 1 {how} before; rank 0 waits in barrier at rank.py:" in found.reason


@pytest.mark.timeout(90)
def test_who_left_is_not_blamed_when_nobody_waits_for_it(verdict):
    found = verdict("elsewhere")
    assert (found.kind, found.culprits) == ("stall", [])
    assert "rank 1" not in found.reason


def compiles(second: int) -> dict[str, object]:
    """By other processes: the main thread waits for them below torch's compiler."""
    return {"stack": code_of(COMPILING[1])}


def writes_a_checkpoint(second: int) -> dict[str, object]:
    """In the background on a slow disk: `Checkpoints._await` opens a region when the files have grown."""
    return {"beats": second // 60}


def writes_by_itself(second: int) -> dict[str, object]:
    """A loop's own torch.save: the main thread is in one call and moves bytes."""
    return {"bytes": second * (2 << 20)}


def evaluates(second: int) -> dict[str, object]:
    """On a device, whose kernels take no core; the loop of the evaluation goes on."""
    return {"stack": [(code_of("evaluate.py")[0][0], second)]}


def stands(second: int) -> dict[str, object]:
    return {}


def code_of(file: str) -> list[tuple[CodeType, int]]:
    return [(compile("pass", file, "exec"), 0)]


@pytest.mark.parametrize("stepping", [False, True], ids=["first step", "later"])
@pytest.mark.parametrize("phase", [compiles, writes_a_checkpoint, writes_by_itself, evaluates, stands])
def test_a_phase_of_a_quarter_of_an_hour_on_one_rank_is_no_stall(
    phase: Callable[[int], dict[str, object]], stepping: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the default limits, second by second; the other rank waits in a collective. Then both stand."""
    now: dict[str, object] = {}
    monkeypatch.setattr(activity, "_stack", lambda: now.get("stack", []))
    monkeypatch.setattr(Activity, "_read_run_s", lambda self: 0.0)
    monkeypatch.setattr(Activity, "_read_bytes", lambda self: now.get("bytes", 0))
    store, config = HashStore(), WatchConfig()
    watches: list[Watch] = []
    for rank in range(2):
        ring = Ring(tmp_path / str(rank), rank, 2, 0)
        log = CollectiveLog(ring)
        log.steps = 9 if stepping else 0
        watch = Watch(config, log, RunPaths(tmp_path), "cuda", lambda: now.get("beats", 0), lambda: None)
        watches.append(watch)
    watches[1].log.open[0] = (0, 1, None)
    found_s: int | None = None
    for second in range(1600):
        for rank, watch in enumerate(watches):
            now.clear()
            now.update(phase(second) if rank == 0 and second < 900 else {})
            watch._ticks = second
            store.set(f"rank/{rank}", watch._report(1.0))
        watches[0]._judge.read(store, 1.0, 0.0)
        if watches[0]._judge.find(config.stall_timeout_s, config.first_step_timeout_s) is not None:
            found_s = second
            break
    began_s = 0 if phase is stands else 900
    limit_s = config.stall_timeout_s if stepping else config.first_step_timeout_s
    assert found_s is not None and began_s + limit_s - 1 <= found_s <= began_s + limit_s + 60
