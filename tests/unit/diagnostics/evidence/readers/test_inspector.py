"""Files of NCCL Inspector: times of the same calls on all ranks show who came last, without traces or equal clocks."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.inspector import InspectorFile


def lines(
    rank: int, times_us: list[float], size: int = 3, name: str = "0x9", own_header: bool = True, **call: Any
) -> bytes:
    result = []
    for n, time_us in enumerate(times_us):
        about = {
            "header": {"id": name, "rank": rank, "n_ranks": size, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 10**15 + n * 10**5, "pid": 7},
        }
        did = {"coll": "AllReduce", "coll_sn": n, "coll_msg_size_bytes": 8, "coll_exec_time_us": time_us, **call}
        result += [{**about, "coll_perf": did}] if own_header else [{"dump_stats": 1, **about}, {"coll_perf": did}]
    return b"".join(json.dumps(line).encode() + b"\n" for line in result)


HONEST = lines(0, [10, 20])
DAMAGED = HONEST.replace(b'"coll_exec_time_us": ', b'"coll_exec_time_us": -')


def written(folder: Path, times_us: list[list[float]], **more: Any) -> Path:
    for rank, own in enumerate(times_us):
        (folder / f"node1-pid{700 - rank}.log").write_bytes(lines(rank, own, len(times_us), **more))
    return folder


def late(rank: int, world: int = 3, calls: int = 20, by_us: float = 60_000) -> list[list[float]]:
    """Others wait for one; 0.1 s lie between the lines."""
    return [[100.0 + n % 3 + (0 if number == rank else by_us) for n in range(calls)] for number in range(world)]


def test_collectives_alone_are_no_good_health(tmp_path: Path) -> None:
    """Not the time between them, nor how the job ended."""
    assert diagnose(written(tmp_path, [[90_000.0] * 20] * 3)).outcome == "undecided"


@pytest.mark.parametrize("own_header", [True, False])
def test_the_rank_that_waits_least_came_last(tmp_path: Path, own_header: bool) -> None:
    report = diagnose(written(tmp_path, late(1), own_header=own_header))
    (cause,) = report.root_causes
    assert (cause.cause, cause.ranks, cause.victims) == ("hang.straggler", (1,), (0, 2))
    assert cause.evidence[0].file == "node1-pid699.log"


@pytest.mark.parametrize(
    "times_us",
    [
        late(1, by_us=3_000),  # Of the time little is lost.
        late(1, calls=2),
        [[100 + 60_000 * (n % 3 != rank) for n in range(20)] for rank in range(3)],  # In turn.
        [*late(1)[:2], []],
    ],
)
def test_what_shows_no_straggler(tmp_path: Path, times_us: list[list[float]]) -> None:
    assert not diagnose(written(tmp_path, times_us)).root_causes


def test_a_root_leaves_a_broadcast_before_the_others(tmp_path: Path) -> None:
    assert not diagnose(written(tmp_path, late(1), coll="Broadcast")).root_causes


def test_ranks_of_a_smaller_communicator_are_named_as_in_the_job(tmp_path: Path) -> None:
    written(tmp_path, [[5.0] * 4 for _ in range(4)])
    for rank, own in enumerate(late(1, world=2)):
        path = tmp_path / f"node1-pid{700 - rank - 2}.log"
        path.write_bytes(path.read_bytes() + lines(rank, own, 2, name="0x7"))
    (cause,) = diagnose(tmp_path).root_causes
    assert (cause.ranks, cause.victims) == ((3,), (2,))


@given(
    st.lists(
        st.sampled_from([b"{", b"[]", b"1", b'{"header": 3}', b'{"coll_perf": {"coll_sn": "x"}}', *HONEST.splitlines()])
    )
)
@settings(max_examples=40, deadline=None)
def test_damaged_lines_are_left_out(tmp_path_factory: pytest.TempPathFactory, datas: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("odd") / "a.log"
    path.write_bytes(b"\n".join(datas))
    whole = sum(line in HONEST.splitlines() for line in {*datas})
    try:
        assert sum(len(item.calls) for item in InspectorFile(path, "a.log", None, Limits()).load()) == whole
    except ValueError:
        assert whole == 0
