import gzip
import io
import tracemalloc

import pytest

from diagnostics.evidence.limits import Limits, TooLargeError, blocks, head, whole
from diagnostics.evidence.model import rank_in_name

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
