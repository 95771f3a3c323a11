import gzip
import json
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.trace import scan as trace_scan
from diagnostics.evidence.trace.scan import Scan

TRICKY = ["}, {", '"}],"traceEvents":[{', "\\", '\\"},{', "\u2028 {\u00e9}", "]", "[{", ""]


class Event(msgspec.Struct):
    name: str = ""
    ts: int | float = 0


def events(count: int) -> list[dict[str, object]]:
    return [
        {"ph": "X", "name": TRICKY[n % 8], "ts": n, "args": {"list": [{"a": 1}, {"b": [{}]}], "s": TRICKY[-n % 8]}}
        for n in range(count)
    ]


def names(path: Path, limits: Limits | None = None) -> tuple[list[tuple[str, float]], Scan[Event]]:
    scan = Scan(path, limits or Limits(), Event)
    return [(event.name, event.ts) for batch in scan.batches() for event in batch], scan


FORMS = {
    "object": lambda e: json.dumps({"schemaVersion": 1, "traceEvents": e, "traceName": "x"}),
    "compact": lambda e: json.dumps({"traceEvents": e}, separators=(",", ":")),
    "pretty": lambda e: json.dumps({"a": {"b": [1]}, "traceEvents": e, "tail": [{}, {"x": 1}]}, indent=2),
    "bare": lambda e: json.dumps(e),
    "mark": lambda e: "\ufeff \n" + json.dumps({"traceEvents": e}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_event_of_every_form_is_read(tmp_path: Path, form: str, compressed: bool) -> None:
    written = events(40_000)
    text = FORMS[form](written).encode()
    assert len(text) > 5 << 19  # several blocks
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(text, 1) if compressed else text)
    result, scan = names(path)
    assert result == [(e["name"], e["ts"]) for e in written]
    assert (scan.problem, scan.damaged) == (None, 0)
    if form == "pretty":
        assert scan.header["a"] == {"b": [1]}
        assert scan.header["tail"] == [{}, {"x": 1}]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block_bytes", [7, 64, 1000, 5000, 1 << 20])
def test_where_blocks_are_cut_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, block_bytes: int
) -> None:
    monkeypatch.setattr(trace_scan, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "t"
    path.write_text(FORMS[form](events(120)))
    result, scan = names(path)
    assert result == [(e["name"], e["ts"]) for e in events(120)]
    assert (scan.problem, scan.damaged) == (None, 0)


def test_events_and_headers_of_many_blocks_are_read_whole(tmp_path: Path) -> None:
    long = {"name": "}, {" * 700_000, "ts": 1}
    written = [{"name": "a", "ts": 0}, long, {"name": "b", "ts": 2}, long]
    path = tmp_path / "t"
    path.write_text(json.dumps({"distributedInfo": ["x" * 100] * 30_000, "traceEvents": written, "after": 1}))
    result, scan = names(path)
    assert result == [(e["name"], e["ts"]) for e in written]
    assert len(scan.header["distributedInfo"]) == 30_000
    assert (scan.header["after"], scan.problem, scan.damaged) == (1, None, 0)


def test_a_long_event_is_not_tried_at_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    take = Scan._take
    monkeypatch.setattr(Scan, "_take", lambda self, rest, block: tries.append(len(rest)) or take(self, rest, block))
    path = tmp_path / "t"
    path.write_text(json.dumps([{"name": "x" * (3 << 20), "ts": 1}, {"name": "b", "ts": 2}]))
    assert len(names(path)[0]) == 2
    assert len(tries) < 10


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("compressed", [False, True])
def test_what_was_whole_before_a_cut_is_used(tmp_path: Path, kept: float, compressed: bool) -> None:
    written = events(40_000)
    text = FORMS["object"](written).encode()
    data = gzip.compress(text, 1) if compressed else text
    path = tmp_path / "t"
    path.write_bytes(data[: int(len(data) * kept)])
    result, scan = names(path)
    assert result == [(e["name"], e["ts"]) for e in written][: len(result)]
    assert len(result) > 40_000 * kept * 0.9 - 4_000
    assert scan.problem is not None and scan.problem.about == ("damaged_end" if compressed else "torn_end")


def test_a_damaged_event_costs_only_itself(tmp_path: Path) -> None:
    good = [json.dumps(event) for event in events(200)]
    bad = ['{"name": 7, "ts": 1}', '{"name": "x", "ts": "soon"}', '{"name": "y" "ts": 1}']
    path = tmp_path / "t"
    path.write_text('{"traceEvents": [' + ",\n".join([*good[:100], *bad, *good[100:]]) + "]}")
    result, scan = names(path)
    assert len(result) == 200
    assert scan.damaged == 3


def test_infinite_numbers_of_old_profilers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text('{"traceEvents": [{"name": "copy", "ts": 5, "args": {"bandwidth": inf, "x": -nan}}]}')
    assert names(path)[0] == [("copy", 5)]


def test_an_endless_event_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text('{"traceEvents": [{"name": "a"}, {"name": "' + "x" * (3 << 20) + '"}, {"name": "b"}]}')
    result, scan = names(path, Limits(event_bytes=1 << 20))
    assert [name for name, _ in result] in ([], ["a"])
    assert scan.problem is not None and scan.problem.figures == {"most_mib": 1}


@pytest.mark.parametrize("text", [b"", b"{}", b'{"other": 1}', b"hello", b'{"traceEvents": 5}', b"\x1f\x8b\x08broken"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(text)
    with pytest.raises(ValueError):
        names(path)


def test_deep_nesting_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text('{"traceEvents": [{"name": "a", "args": ' + "[" * 100_000 + "]" * 100_000 + '}, {"name": "b"}]}')
    result, scan = names(path)
    assert ("b", 0) in result
    assert scan.damaged <= 1


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for copies in (20_000, 160_000):
        path = tmp_path / f"{copies}"
        path.write_bytes(gzip.compress(FORMS["object"](events(copies)).encode(), 1))
        tracemalloc.start()
        scan = Scan(path, Limits(), msgspec.Raw)
        assert sum(len(batch) for batch in scan.batches()) == copies
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=3)), min_size=1, max_size=6))
def test_no_mutation_crashes_the_scan(tmp_path: Path, cuts: list[tuple[int, bytes]]) -> None:
    data = bytearray(FORMS["pretty"](events(12)).encode())
    for at, new in cuts:
        data[at : at + len(new)] = new
    path = tmp_path / "t"
    path.write_bytes(data)
    try:
        result, _ = names(path)
    except ValueError:
        return
    assert len(result) <= 40
