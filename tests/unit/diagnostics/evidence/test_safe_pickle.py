"""Pickles: plain values come through, everything else is refused and named, and never runs."""

import os
import pickle
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.safe_pickle import loads, refuse_sharing
from tests.work import calls_in

LIMITS = Limits()
DUMP = {
    "version": "2.10",
    "entries": [{"id": 1 << 62, "group": ("0", "default_pg"), "ok": True, "none": None, "ms": 1.5, "raw": b"x" * 300}]
    * 3,
    "text": "t" * 70_000 + "\u00e9",
    "negative": [-1, -(1 << 40), 70_000, 300],
}


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_through(protocol: int) -> None:
    many = {"frames": [{"name": f"f{i}", "line": i} for i in range(500)], **DUMP}
    many["raw"] = b"" if protocol < 3 else b"abc"
    if protocol < 3:  # bytes need a global there
        many["entries"] = [{"group": ("0", "x")}]
        many["raw"] = "abc"
    assert loads(pickle.dumps(many, protocol=protocol) + b"trailing", LIMITS) == many


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_is_refused_named_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "ran"
    with pytest.raises(ValueError, match=r"refused: it would execute (posix|os|nt)\.system"):
        loads(pickle.dumps({"pg_config": Runs(target)}, protocol=protocol), LIMITS)
    assert not target.exists()


def test_every_global_is_refused_even_a_harmless_one() -> None:
    with pytest.raises(ValueError, match=r"collections\.OrderedDict"):
        loads(pickle.dumps(OrderedDict(a=1)), LIMITS)


ALLOCATE = {
    "memo": b"\x80\x02}r\xff\xff\xff\x7f.",
    "memo in text": b"(dp999999999\n.",
    "bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\x00\x00x.",
    "text": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "bytearray": b"\x80\x05\x96\x00\x00\x00\x00\x10\x00\x00\x00.",
    "frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",
    "number": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
    "wide number": b"\x80\x02\x8b\x40\x42\x0f\x00" + b"\x01" * 1_000_000 + b".",
    "containers": b"\x80\x02" + b"}" * 20_000_000 + b".",
}


@pytest.mark.parametrize("name", ALLOCATE)
def test_lengths_beyond_reason_are_refused_without_memory(name: str) -> None:
    tracemalloc.start()
    try:
        try:
            loads(ALLOCATE[name], LIMITS)
        except ValueError:
            refused = True
        else:
            refused = name == "frame"  # frames are not needed, so their length is not believed
        assert refused
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


def nested_key(depth: int) -> bytes:
    """A dict whose key is a tuple of tuples of ...: hashing it takes 2 ** depth steps, or the C stack."""
    pairs = b"".join(b"q%ch%ch%c\x86" % (i % 250, i % 250, i % 250) for i in range(depth))
    return b"\x80\x02}K\x01\x85" + pairs + b"K\x01s."


@pytest.mark.timeout(60)
@pytest.mark.parametrize("data", [nested_key(60), b"\x80\x02}K\x01" + b"\x85" * 2_000_000 + b"K\x01s."])
def test_costly_keys_are_refused_at_once(data: bytes) -> None:
    with pytest.raises(ValueError, match="tuples within tuples"):
        loads(data, LIMITS)


HOSTILE = {
    "empty": b"",
    "no stop": pickle.dumps(DUMP)[:-1],
    "half": pickle.dumps(DUMP)[:400],
    "persistent": b"\x80\x02Vabc\nQ.",
    "persistent in text": b"Pabc\n.",
    "extension": b"\x80\x02\x82\x01.",
    "double": b"\x80\x02]22.",
    "set": b"\x80\x04\x8f(K\x01\x90.",
    "noise": bytes(range(256)) * 10,
    "pop of nothing": b"\x80\x020.",
    "unhashable": b"\x80\x02}]K\x01s.",
    "list of lists": b"\x80\x02" + b"]" * 3_000_000,
    "reduce of text": b"\x80\x02X\x01\x00\x00\x00a)R.",
    "build": b"\x80\x02]}b.",
    "instance": b"(ios\nsystem\n.",
    "not text": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damage_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        loads(HOSTILE[name], LIMITS)


def test_too_large_is_said() -> None:
    with pytest.raises(ValueError, match="--limit-scale"):
        loads(pickle.dumps("x" * 4000), Limits(whole_bytes=2000))


def test_honest_dumps_load_at_c_speed() -> None:
    frames = [{"filename": f"/a/file_{i % 50}.py", "name": f"f{i}", "line": i} for i in range(300)]
    value = [
        {"addr": i << 20, "size": i, "frames": frames[i % 200 : i % 200 + 20], "time": 1 << 60} for i in range(60_000)
    ]
    data = pickle.dumps(value, protocol=4)
    loaded, calls = calls_in(lambda: loads(data, LIMITS))
    assert loaded == value
    assert calls < 20_000


def dag(leaf: Any, depth: int, width: int = 2) -> Any:
    for _ in range(depth):
        leaf = [leaf] * width
    return leaf


@pytest.mark.parametrize("value", [dag([4], 40), dag({"a": 1}, 40), {"entries": [dag("x", 3, 300)]}, [dag((1,), 30)]])
def test_sharing_that_stands_for_more_than_memory_holds_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="refused: it shares its parts"):
        refuse_sharing(loads(pickle.dumps(value, 4), Limits()))


def test_a_list_within_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append({"a": [loop]})
    with pytest.raises(ValueError, match="refused: a container within itself"):
        refuse_sharing(loads(pickle.dumps(loop, 4), Limits()))


def test_stacks_that_many_events_share_are_read() -> None:
    frames = [{"name": "f", "filename": "a.py", "line": n} for n in range(100)]
    value = {"events": [{"action": "alloc", "addr": n, "frames": frames} for n in range(5_000)]}
    loaded = loads(pickle.dumps(value, 4), Limits())
    refuse_sharing(loaded)
    assert loaded == value
