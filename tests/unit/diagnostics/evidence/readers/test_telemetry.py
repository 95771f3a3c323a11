"""Telemetry of a node: recognised by its first line, loaded as a timeline of devices and host."""

import json
from pathlib import Path

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers import timeline
from diagnostics.evidence.readers.telemetry import READER, recognise
from diagnostics.evidence.readers.timeline import TimelineFile

ABOUT = {"kind": "about", "every_s": 1.0, "cores": 8, "host_total_bytes": 64 << 30}
SAMPLE = {"kind": "sample", "time_s": 5.0, "host_used_bytes": 8 << 30}


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_telemetry_is_no_timeline_of_a_rank_nor_the_other_way_round() -> None:
    rank = lines({"step": 1, "time_s": 1.0, "rss_bytes": 5})
    assert [recognise(HONEST), timeline.recognise(HONEST)] == [True, False]
    assert [recognise(rank), timeline.recognise(rank)] == [False, True]
    assert not recognise(b"") and not recognise(b"plain text\n")


def test_the_node_is_the_number_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "node_00003.jsonl"
    path.write_bytes(HONEST)
    handle = TimelineFile(path, path.name, 3, Limits())
    assert handle.load().steps == []
    assert READER.per_rank == ""  # One file a node: no rank lacks one.


HONEST = lines(ABOUT, SAMPLE)
DAMAGED = HONEST.partition(b"\n")[0][:-1] + b"\nno record\n"
