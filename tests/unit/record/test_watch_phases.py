"""The live watch keeps silent while one rank works for a quarter of an hour: time and its work are simulated."""

from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
from torch._C._distributed_c10d import HashStore

from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import WatchConfig
from dtk.record import activity
from dtk.record.activity import COMPILING, Activity
from dtk.record.collectives import CollectiveLog
from dtk.record.ring import Ring
from dtk.record.watch import Watch


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
