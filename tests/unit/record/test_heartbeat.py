import signal
import time
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import HEARTBEAT_BYTES, read_heartbeat
from dtk.parallel.regions import communication, observe, region
from dtk.record import heartbeat
from dtk.record.heartbeat import HeartbeatFile, can_map

KILLED = """
import sys, time
from pathlib import Path
from dtk.record.heartbeat import HeartbeatFile
from dtk.parallel.regions import communication, observe, region
beat = HeartbeatFile(Path(sys.argv[1]), attempt=2)
beat.start()
observe([beat])
for step in range(8):
    beat.begin_step(step)
    with region("forward"):
        pass
with region("backward"), communication("all_reduce", 4096, "dp"):
    print("inside", flush=True)
    time.sleep(60)
"""

BUSY = """
import sys
from pathlib import Path
from dtk.record.heartbeat import HeartbeatFile
from dtk.parallel.regions import observe, region
beat = HeartbeatFile(Path(sys.argv[1]), 0)
beat.start()
observe([beat])
print("busy", flush=True)
step = 0
while True:
    step += 1
    beat.begin_step(step)
    with region("x" * (step % 100)):
        pass
"""


@pytest.mark.timeout(60)
def test_a_killed_process_leaves_its_step_and_region(tmp_path, child):
    path, began_s = tmp_path / "heartbeat" / "rank_00003.json", time.time()
    process = child(KILLED, path)
    assert process.stdout.readline() == "inside\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    beat = read_heartbeat(path)
    assert (beat.step, beat.region, beat.pid, beat.attempt) == (7, "all_reduce 4096 B dp", process.pid, 2)
    assert began_s <= beat.time_s <= time.time()
    assert path.stat().st_size == HEARTBEAT_BYTES


@pytest.mark.timeout(60)
def test_a_reader_never_sees_half_a_beat(tmp_path, child):
    path = tmp_path / "rank_00000.json"
    process = child(BUSY, path)
    assert process.stdout.readline() == "busy\n"
    seen = set()
    ends_s = time.monotonic() + 20
    while len(seen) < 30 and time.monotonic() < ends_s:
        beat = read_heartbeat(path)
        if beat is not None and beat.step is not None:
            assert beat.region in (None, "x" * (beat.step % 100))
            seen.add(beat.step)
    assert len(seen) == 30


def test_regions_nest_and_unwind(tmp_path):
    beat = HeartbeatFile(tmp_path / "rank_00000.json", 0)
    beat.start()
    assert read_heartbeat(beat.path).step is None
    observe([beat])
    beat.begin_step(4)
    with region("backward"):
        with communication("all_reduce", 8, "dp"):
            assert read_heartbeat(beat.path).region == "all_reduce 8 B dp"
        assert read_heartbeat(beat.path).region == "backward"
    assert read_heartbeat(beat.path).region is None
    with region('a "quoted" name ' + "long " * 200):
        assert read_heartbeat(beat.path).region.startswith('a "quoted" name long')
    beat.close("end")
    assert read_heartbeat(beat.path).region == "end"


@pytest.mark.parametrize("name", ["forward", "é" * 100, '"' * 160, "x" * 500, "\U0001f525" * 40])
def test_a_name_of_any_letters_leaves_a_heartbeat_that_can_be_read(tmp_path, monkeypatch, name):
    monkeypatch.setattr(heartbeat.socket, "gethostname", lambda: "h" * 64)
    beat = HeartbeatFile(tmp_path / "beat", 1000)
    beat.start()
    beat._beat = 10**12
    observe([beat])
    beat.begin_step(10**9)
    with region(name):
        shown = read_heartbeat(tmp_path / "beat")
    assert shown is not None and shown.region and name.startswith(shown.region) and shown.host == "h" * 64
    beat.close("end")


def test_where_a_mapped_page_may_stall_a_thread_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "can_map", lambda path: False)
    monkeypatch.setattr(heartbeat, "PUBLISH_EVERY_S", 0.05)
    beat = HeartbeatFile(tmp_path / "rank_00000.json", 0)
    beat.start()
    beat.begin_step(9)
    while (result := read_heartbeat(beat.path)) is None or result.step != 9:
        time.sleep(0.01)
    beat.close("end")


def test_which_file_systems_are_mapped(tmp_path):
    assert can_map(tmp_path)
    if Path("/proc/self").exists():
        assert not can_map(Path("/proc/self"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"beat": 1, "beat_end": 2}', b"\0" * HEARTBEAT_BYTES])
def test_what_is_no_heartbeat_reads_as_none(tmp_path, content):
    path = tmp_path / "rank_00000.json"
    path.write_bytes(content)
    assert read_heartbeat(path) is None
    assert read_heartbeat(tmp_path / "absent.json") is None
