import signal
import time

import pytest

from diagnostics.contract.artifacts import Verdict, write_json
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose

FACING = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from dtk.record import wrappers
from dtk.record.collectives import CollectiveLog
from dtk.record.ring import Ring
rank = int(sys.argv[2])
made = Ring(Path(sys.argv[1]), rank, 2, 0)
made.start()
wrappers.install(CollectiveLog(made))
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
dist.all_reduce(torch.ones(2))
os.write(1, b"planted\\n")
if rank == 0:
    dist.recv(torch.empty(4 << 20), 1, tag=21)
dist.send(torch.ones(4 << 20), 0, tag=int(sys.argv[4]))
"""


@pytest.mark.timeout(90)
def test_two_halves_with_different_tags_are_told_from_a_circle(tmp_path, child):
    """A send returns only when its receive is posted, or gloo took it over: large enough, it waits."""
    paths = [tmp_path / "flight" / f"rank_{rank:05d}.ring" for rank in range(2)]
    ranks = [child(FACING, path, rank, tmp_path / "store", 22) for rank, path in enumerate(paths)]
    assert [process.stdout.readline() for process in ranks] == ["planted\n"] * 2
    time.sleep(1.0)
    for process in ranks:
        process.send_signal(signal.SIGSTOP)
    for process in ranks:
        process.send_signal(signal.SIGKILL)
        process.wait()
    write_json(tmp_path / "watch.json", Verdict("stall", "nothing moved", [], [], time_s=time.time() + 20))
    report = diagnose(tmp_path)
    first = report.root_causes[0]
    assert (first.cause, first.ranks) == ("hang.p2p_cycle", (0, 1)), text_of(first).summary
    assert text_of(first).summary.startswith("A send and its receive have different tags")
    assert text_of(first).remedies[0].change.startswith("give the two halves of a message the same tag")
