import sqlite3
import tempfile
from pathlib import Path

import pytest

from diagnostics.analysis.step_profile.profile import profile
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.nsys import READER, NsysFile
from tests.fuzz.seeds import database
from tests.shared_data import shared_data


def real() -> NsysFile:
    path = shared_data("traces/nsys_2gpu_h100/mfu_2gpu_before.sqlite")
    return NsysFile(path, path.name, None, Limits())


def test_each_device_of_an_export_becomes_a_rank() -> None:
    ranks = [profile(trace) for trace in real().load()]
    assert [item.rank for item in ranks] == [0, 1]
    for rank in ranks:
        times = rank.window
        assert times.compute + times.exposed + times.memory + times.idle == times.wall
        assert {call.message.op for call in rank.calls} == {"send_recv"}
        assert all(call.on_compute and not call.overlapped for call in rank.calls)


@pytest.mark.parametrize("kept", [100, 5_000, 400_000])
def test_a_damaged_export_is_a_value_error(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes(real().path.read_bytes()[:kept])
    with pytest.raises(ValueError):
        NsysFile(path, "cut", None, Limits()).load()


def export(path: Path, *statements: str) -> NsysFile:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return NsysFile(path, path.name, None, Limits())


KERNEL = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName)"
)
STRINGS = "CREATE TABLE StringIds (id, value)"


def test_a_generated_column_cannot_fill_the_memory(tmp_path: Path) -> None:
    value = "ALTER TABLE StringIds ADD COLUMN value TEXT GENERATED ALWAYS AS (hex(zeroblob(400000000)) || id) VIRTUAL"
    rows = [f"INSERT INTO StringIds (id) VALUES ({n})" for n in range(20)]
    rows.append(value)  # After the rows, which would compute it.
    rows += [f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({n}, {n + 1}, 0, 7, {n}, 0, {n})" for n in range(20)]
    with pytest.raises(ValueError, match="too big"):
        export(tmp_path / "a.sqlite", "CREATE TABLE StringIds (id)", KERNEL, *rows).load()


def test_a_join_gives_no_more_rows_than_the_file_holds(tmp_path: Path) -> None:
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 2000)"
    strings = f"INSERT INTO StringIds {numbers} SELECT 1, 'kernel ' || x FROM n"
    kernels = f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL {numbers} SELECT x, x + 1, 0, 7, x, 0, 1 FROM n"
    with pytest.raises(ValueError, match="more rows than the file holds"):
        export(tmp_path / "a.sqlite", STRINGS, KERNEL, strings, kernels).load()


def test_another_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not an Nsight export|an Nsight export without"):
        export(tmp_path / "a.sqlite", "CREATE TABLE users (name)").load()
    with pytest.raises(ValueError, match="without kernels"):
        export(tmp_path / "b.sqlite", KERNEL, STRINGS).load()


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    endless = (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x start, x end, 0 deviceId, 0 streamId, "
    )
    view = f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless} 0 correlationId, 0 globalPid, 0 demangledName FROM n"
    with pytest.raises(ValueError, match=r"not an Nsight export|an Nsight export without"):
        export(tmp_path / "v.sqlite", view, STRINGS).load()


def test_odd_values_are_a_value_error(tmp_path: Path) -> None:
    row = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('soon', NULL, 0, 7, 1, 0, 1)"
    with pytest.raises(ValueError):
        export(tmp_path / "o.sqlite", KERNEL, STRINGS, row).load()


def test_the_file_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "copy.sqlite"
    path.write_bytes(real().path.read_bytes())
    path.chmod(0o444)
    NsysFile(path, "copy", None, Limits()).load()
    assert [entry.name for entry in tmp_path.iterdir()] == ["copy.sqlite"]


def test_recognised_by_its_first_bytes() -> None:
    assert READER.recognise(b"SQLite format 3\x00rest")
    assert not READER.recognise(b"SQLite")


with tempfile.TemporaryDirectory() as _folder:
    HONEST = database(Path(_folder))
DAMAGED = HONEST[:2048]
