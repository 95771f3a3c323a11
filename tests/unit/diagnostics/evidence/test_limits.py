import gzip
import io
import re
import tracemalloc

import pytest

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import Options, diagnose
from diagnostics.evidence.limits import MOST_DEPTH, Limits, TooLargeError, blocks, head, is_deeper, reading, whole
from diagnostics.evidence.model import rank_in_name
from diagnostics.evidence.readers.trace import TraceFile

SMALL = Limits(whole_bytes=1 << 20, stream_bytes=4 << 20, ratio=100)


def test_plain_gzip_and_several_members_read_alike(tmp_path):
    data = bytes(range(256)) * 9000
    plain, packed, members = tmp_path / "a", tmp_path / "b.gz", tmp_path / "c"
    plain.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    members.write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + b"\0" * 512)
    for path in (plain, packed, members):
        assert b"".join(blocks(path, Limits())) == data
        assert whole(path, Limits()) == data
        assert data.startswith(head(path)) and len(head(path)) >= 1000


def test_a_bomb_is_refused_without_its_memory(tmp_path):
    inner = io.BytesIO()
    with gzip.GzipFile(fileobj=inner, mode="wb", compresslevel=9) as file:
        for _ in range(512):
            file.write(b"\0" * (1 << 20))
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(inner.getvalue())
    tracemalloc.start()
    with pytest.raises(TooLargeError, match="times its size"):
        for _ in blocks(bomb, Limits()):
            pass
    with pytest.raises(TooLargeError, match="MiB"):
        whole(bomb, SMALL)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_what_was_whole_before_the_damage_comes_out(tmp_path):
    import random

    data = random.Random(0).randbytes(8 << 20)
    packed = gzip.compress(data)
    (tmp_path / "cut").write_bytes(packed[: len(packed) // 2])
    got = b""
    with pytest.raises(ValueError, match="ends in the middle"):
        for block in blocks(tmp_path / "cut", Limits()):
            got += block
    assert len(got) > 3 << 20
    assert data.startswith(got)
    (tmp_path / "noise").write_bytes(packed[:1000] + b"\xff" * 1000 + packed[2000:])
    with pytest.raises(ValueError, match="damaged"):
        whole(tmp_path / "noise", Limits())


def test_an_empty_file_is_no_error_and_a_missing_one_is(tmp_path):
    (tmp_path / "empty").touch()
    assert whole(tmp_path / "empty", SMALL) == head(tmp_path / "empty") == b""
    with pytest.raises(OSError):
        head(tmp_path / "absent")


def test_limits_scale_together():
    assert SMALL.scaled(2).whole_bytes == 2 << 20
    assert SMALL.scaled(2).ratio == 200


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("comm_lib_trace_rank_12", 12),
        ("nccl_trace_rank_0", 0),
        ("host-7_tr_3.json", 3),
        ("node12.gpu4-dump_00031.pickle", 31),
        ("rank_00002.blackbox.json", 2),
        ("rank_00002.host.pickle", 2),
        ("rank3_step_12.pt.trace.json.gz", 3),
        ("rank_00001/stderr.log", 1),
        ("stderr.log", None),
    ],
)
def test_the_rank_that_a_name_states(tmp_path, name, rank):
    assert rank_in_name(tmp_path.parent.parent / "x" / name) == rank


def test_how_far_a_file_was_read_is_told(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"a" * (3 << 20))
    heard = []
    with reading(lambda where, share: heard.append((where, round(share, 2)))):
        assert sum(map(len, blocks(path, Limits()))) == 3 << 20
    assert heard == [(path, 0.33), (path, 0.67), (path, 1.0)]
    assert list(blocks(path, Limits())) and len(heard) == 3, "nobody listens any more"


@pytest.mark.parametrize(
    ("head", "deeper"),
    [(b"[" * 65, True), (b"[" * 64, False), (b'{"a":"' + b"[" * 99 + b'"}', False), (b"[]" * 99, False), (b"x", False)],
)
def test_nesting_over_the_limit(head, deeper):
    assert is_deeper(head, Limits()) == deeper


def test_json_that_is_nested_too_deeply_is_named(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    event = '{"ph":"X","cat":"cpu_op","name":"x","ts":1,"dur":1,"args":{"a":' + deep + "}}"
    for text in (deep, '{"pg_config": ' + deep + "}", '{"traceEvents": [' + event + "]}"):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(DiagnosticsError, match="nested over 64 levels"):
            diagnose(tmp_path)


def test_a_trace_with_more_device_events_than_the_limit_ends_there(tmp_path):
    event = '{"ph":"X","cat":"%s","name":"%s","pid":1,"tid":7,"ts":%d,"dur":1,"args":{"correlation":%d,"stream":7}}'
    for step, scattered in ((1, 0), (1000, 9 << 50)):  # ids counted up, and ids all over
        events = []
        for n in range(40):
            number = scattered + step * n
            events.append(event % ("cuda_runtime", "cudaLaunchKernel", 10 * n, number))
            events.append(event % ("kernel", "gemm", 10 * n + 4, number))
        path = tmp_path / f"{step}.json"
        path.write_text('{"traceEvents": [' + ",".join(events) + "]}")
        whole_trace = TraceFile(path, path.name, 0, Limits()).load()
        assert list(whole_trace.launch) == [10_000 * n for n in range(40)]
        assert not whole_trace.problems
    cut = TraceFile(path, path.name, 0, Limits(spans=20)).load()
    assert 20 <= len(cut.device) < 40, "the batch in which the limit is reached is taken whole"
    assert [problem.what for problem in cut.problems] == [
        f"only its first {len(cut.device)} device events are used; raise it with --limit-scale"
    ]


@pytest.mark.parametrize("scale", [1, 7, 100])
@pytest.mark.parametrize("depth", [60, 300, 985, 1500, 5000])
def test_no_depth_and_no_scale_ends_otherwise_than_in_a_line(tmp_path, depth, scale):
    limits = Limits().scaled(scale)
    lists, pairs = "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth
    tuples = b")" + b"\x85" * (depth - 1)
    event = '{"ph":"X","cat":"kernel","name":"x","pid":1,"tid":7,"ts":1,"dur":1,"args":%s}'
    entry = '{"process_group":["0","default_pg"],"collective_seq_id":1,"profiling_name":"gloo:all_reduce","%s":%s}'
    files = {"rank_0": b"\x80\x02}(U\x07versionU\x042.10U\x09pg_config}U\x07entries" + tuples + b"u."}
    for deep in (lists, pairs):
        files["a.json"] = deep.encode()
        files["rank_0.json"] = f'{{"pg_config": {deep}, "entries": [{entry % ("input_sizes", deep)}]}}'.encode()
        files["rank_1.json"] = f'{{"pg_config": {{}}, "entries": [{entry % ("frames", deep)}]}}'.encode()
        files["rank_2.trace.json"] = f'{{"traceEvents": [{event % deep}]}}'.encode()
        files["error.json"] = f'{{"message": {{"message": {deep}, "extraInfo": {{"timestamp": "1"}}}}}}'.encode()
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
            try:
                said = [problem for row in diagnose(tmp_path, Options(limits)).coverage for problem in row.problems]
            except DiagnosticsError as refused:
                said = [refused.what]
            assert not any("Recursion" in item or "Traceback" in item for item in said)
            over = [int(match) for item in said for match in re.findall(r"nested over (\d+) levels", item)]
            assert all(limit < depth and limit <= MOST_DEPTH for limit in over), "it says what is true"
            (tmp_path / name).unlink()


def test_lines_behind_a_hole_are_read_and_the_hole_is_not(tmp_path):
    path = tmp_path / "sparse.log"
    with path.open("wb") as file:
        file.write(b"first\n")
        file.seek(1 << 36)
        file.write(b"\nlast\n")
        file.truncate(1 << 40)
    read = b"".join(blocks(path, Limits(), text=True))
    assert read.startswith(b"first\n") and b"\nlast\n" in read and len(read) < 64 << 20
