"""Files loaded by worker processes: the same survey, whatever their number and whatever happens to them."""

import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.histories import read as reading_files
from diagnostics.analysis.histories.read import Reading, read
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.hang.dumps import Job, Op, evidence, write

WORLD = 12


def survey(evidence: Evidence, workers: int) -> Any:
    """Everything that detectors look at, in a form that can be compared."""
    reading: Reading = read(evidence, workers)
    item = reading.survey
    tables = {
        key: (table.lines, table.base, table.deviations, table.arrivals.times, table.arrivals.latest, table.uses_p2p)
        for key, table in item.groups.items()
    }
    return item.ranks, item.declared, item.world_size, item.positions, tables, reading.problems


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks with rings that wrapped, one that left a call out, files that are damaged, too large in their numbers."""
    tmp_path = tmp_path_factory.mktemp("dumps")
    steps = [Op(line=10), Op("all_gather", 16, 20, group="1"), Op("reduce_scatter", 4, 30)] * 200
    programs = {rank: list(steps) for rank in range(WORLD)}
    del programs[7][450]
    groups = {"0": list(range(WORLD)), "1": list(range(WORLD))}
    keep = {rank: random.Random(rank).randrange(300, 500) for rank in range(WORLD)}
    played = Job(programs, groups, ring=keep)
    write(tmp_path, played)
    (tmp_path / "tr_3").write_bytes(b"\x80\x04pg_config and nothing more")
    dump = played.play()[5]
    dump["entries"][-1]["input_sizes"] = [[1 << 40, 1 << 40]]  # Their product is beyond 64 bits.
    (tmp_path / "tr_5").write_bytes(pickle.dumps(dump))
    dump = played.play()[9]
    dump["entries"][-2] = {"profiling_name": "nccl:x"}  # Then none of it is used.
    (tmp_path / "tr_9").write_bytes(pickle.dumps(dump))
    return tmp_path


def test_the_number_of_workers_changes_nothing(folder: Path) -> None:
    alone = survey(evidence(folder, world_size=WORLD), 0)
    assert len(alone[0]) == WORLD - 2
    assert {problem.file for problem in alone[-1]} == {"tr_3", "tr_9"}
    assert alone[4][next(iter(sorted(alone[4])))][2], "rank 7 deviates"
    for workers in (2, 5):
        assert survey(evidence(folder, world_size=WORLD), workers) == alone


def test_workers_do_the_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[int] = []
    true_digest = reading_files.digest
    monkeypatch.setattr(reading_files, "digest", lambda rank, *rest: here.append(rank) or true_digest(rank, *rest))
    read(evidence(folder), 3)
    assert not here


def test_few_files_start_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", lambda *_, **__: pytest.fail("a process was started"))
    assert len(read(evidence(folder)).survey.ranks) == WORLD - 2


def test_counters_of_a_group_with_sends_are_used_for_no_rank(tmp_path: Path) -> None:
    """NCCL counts both in one number; a ring that wrapped shows the sends of some ranks only."""
    programs = {rank: [Op("send" if rank else "recv", peer=1 - rank), *[Op(line=10)] * 20] for rank in range(2)}
    dumps = Job(programs).play()
    for rank, kept in ((0, 20), (1, 21)):
        status = dumps[rank]["pg_status"]["0"]
        status["last_enqueued_collective"] = status["last_completed_collective"] = 21
        dumps[rank]["entries"] = dumps[rank]["entries"][-kept:]
        (tmp_path / f"tr_{rank}").write_bytes(pickle.dumps(dumps[rank]))
    survey = read(evidence(tmp_path)).survey
    (table,) = survey.groups.values()
    assert {rank: (line.issued, line.done) for rank, line in table.lines.items()} == {0: (20, 20), 1: (20, 20)}
