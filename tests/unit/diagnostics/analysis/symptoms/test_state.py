"""What follows from who waits where: positions of one group, ranks at other calls, whole groups."""

from pathlib import Path

import pytest

from diagnostics.analysis.symptoms.state import is_warning
from tests.unit.diagnostics.analysis.divergence.test_from_watchdogs import hung, in_group, signal, timeout
from tests.unit.diagnostics.analysis.symptoms.test_gather import read


def test_ranks_in_two_collectives_without_a_position_are_apart(tmp_path: Path) -> None:
    line = "[E ProcessGroupNCCL.cpp:566] [Rank {}] Watchdog caught collective operation timeout: "
    line += "WorkNCCL(OpType={}, Timeout(ms)=600000) ran for 600140 milliseconds before timing out.\n"
    apart = "".join(line.format(rank, "ALLGATHER" if rank == 2 else "ALLREDUCE") for rank in range(4))
    symptoms = read(tmp_path, apart)
    assert [(wait.ranks, wait.op) for wait in symptoms.waits] == [((0, 1, 3), "all_reduce"), ((2,), "all_gather")]
    assert symptoms.at_other_calls == (2,)
    both = read(tmp_path, "".join(line.format(rank, op) for rank in (0, 1) for op in ("ALLREDUCE", "BROADCAST")))
    assert not both.at_other_calls  # Each rank has both calls outstanding.


def test_ranks_of_one_group_at_different_positions(tmp_path: Path) -> None:
    symptoms = read(tmp_path, hung(0, seq=50) + hung(1, seq=42))
    assert [wait.seq for wait in symptoms.by_position] == [42, 50]


def test_groups_of_one_dimension_are_told_apart(tmp_path: Path) -> None:
    """Each pair of a tp dimension counts its own calls, so that their positions say nothing of each other."""
    text = "".join(in_group(rank, f"{1 + rank // 2}(mesh_tp)", rank % 2, seq=42 + rank // 2) for rank in range(4))
    symptoms = read(tmp_path, text)
    assert [(wait.ranks, wait.group) for wait in symptoms.waits] == [((0, 1), "mesh_tp 1"), ((2, 3), "mesh_tp 2")]
    assert not symptoms.by_position


def test_positions_of_messages_are_not_compared(tmp_path: Path) -> None:
    text = "".join(in_group(rank, "1(pp)", rank, seq=42 + rank, op="COALESCED") for rank in range(3)) + signal(3)
    symptoms = read(tmp_path, text)
    assert not symptoms.by_position and not symptoms.behind


def test_a_call_that_was_enqueued_behind_another_one_is_no_cause(tmp_path: Path) -> None:
    """All ranks wait in the all_reduce, which they enqueued last; rank 1 does not come to the call of its pair."""
    gathers = "".join(
        in_group(rank, f"{1 + rank // 2}(mesh_tp)", rank % 2, seq=77, at="09:59:58") for rank in (0, 2, 3)
    ).replace("600012", "600000")
    symptoms = read(tmp_path, "".join(hung(rank) for rank in (0, 1, 2, 3)) + gathers)
    assert [(wait.ranks, wait.group, wait.behind) for wait in symptoms.waits] == [
        ((2, 3), "mesh_tp 2", ()), ((0,), "mesh_tp 1", ()), ((0, 1, 2, 3), "default_pg", (0, 2, 3))
    ]  # fmt: skip
    assert not symptoms.waits[-1].seems_whole and not symptoms.waits[-1].whole_group


def test_close_positions_of_a_group_without_a_name_are_of_one_group(tmp_path: Path) -> None:
    def of(*seqs: int) -> list[int | None]:
        text = "".join(timeout(rank, seq=seq) for rank, seq in enumerate(seqs))
        return [wait.seq for wait in read(tmp_path, text).by_position]

    assert of(5321, 5321, 5323) == [5321, 5323]
    assert of(42, 42, 50) == [], "two groups may be at these positions"


@pytest.mark.parametrize(
    ("line", "warns"),
    [
        ("node1:40:51 [0] misc/cudawrap.cc:36 NCCL WARN Cuda failure 'out of memory'", True),
        ("/venv/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: unknown error", True),
        ("[W1201 04:12:00.123 socket.cpp:697] [c10d] The client socket has failed to connect", True),
        ("2026-12-01 04:12:00 WARNING trainer: no peer access between the devices", True),
        ("RuntimeError: NCCL error: unhandled system error", False),
        ("[E1201 04:12:00.123 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout", False),
        ("WARNINGS_AS_ERRORS is not set", False),
    ],
)
def test_a_warning_is_told_by_the_head_that_nccl_python_or_a_logger_gives_it(line: str, warns: bool) -> None:
    assert is_warning(line) == warns
