import json

import pytest

from dtk.record.guard import JsonLines, Writer
from tests.patience import stretched

FULL_DISK = """
import resource, sys
from pathlib import Path
from dtk.record.guard import Writer
from dtk.record.guard import JsonLines
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
lines = JsonLines(Path(sys.argv[1]), Writer("w"))
writer = lines._writer
writer.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for step in range(100):
    lines.append({"step": step, "loss": 1.5})
assert writer.close(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
lines.write([{"step": 100, "loss": 1.5}])
"""


def test_records_arrive_in_order(tmp_path):
    writer = Writer("w")
    writer.start()
    lines = JsonLines(tmp_path / "events" / "rank_00000.jsonl", writer)
    lines.append({"step": 1}, {"step": 2})
    lines.append({"step": 3, "path": tmp_path})
    assert writer.close(5)
    records = [json.loads(line) for line in lines.path.read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3]
    assert records[2]["path"] == str(tmp_path)


@pytest.mark.timeout(60)
def test_after_a_full_disk_the_next_record_is_whole_again(tmp_path, child):
    path = tmp_path / "metrics.jsonl"
    process = child(FULL_DISK, path)
    _, errors = process.communicate(timeout=stretched(30))
    assert process.returncode == 0, errors
    assert len([line for line in errors.splitlines() if line.startswith("dtk:")]) == 1
    steps, torn = [], 0
    for line in path.read_text().splitlines():
        try:
            steps.append(json.loads(line)["step"])
        except ValueError:
            torn += 1
    assert torn <= 1
    assert 20 < len(steps) < 50
    assert steps == [*range(len(steps) - 1), 100]
