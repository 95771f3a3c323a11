"""A rank that ended in order where no steps were recorded: between two rounds of its loop, within one, or unknown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.stall.endings import departure
from diagnostics.contract.findings import SEEN
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import LogFact, RankError
from diagnostics.evidence.readers.watch import IN_ORDER
from tests.dist.ranks import free_port
from tests.patience import stretched
from tests.unit.diagnostics.analysis.calls import call, history, job
from tests.unit.diagnostics.hang.dumps import Job, Op, confirmed, detect, evidence, write

A, B, C = Op(line=10), Op("all_gather", 16, 20), Op("barrier", line=30)
SETUP = Op("broadcast", 100, 5, function="setup")
FIRST = Op(size=99, line=10)
"""The first bucket before DDP makes new ones: from the same line as `A`."""


def ended(rank: int = 1) -> RankError:
    return RankError(rank, "launcher.log", 25, "", "", exit_code=0)


def played(folder: Path, mine: list[Op], others: list[Op], backend: str, **options: object) -> dict[str, str]:
    """Cause -> status, where rank 1 made `mine` and then ended in order."""
    write(folder, Job({0: others, 1: mine, 2: others}, backend=backend), **options)  # type: ignore[arg-type]
    findings = detect(evidence(folder, world_size=3, errors=[ended()]))
    for finding in findings:
        assert finding.status != "confirmed" or finding.ranks == (1,)
    return {item.cause.removeprefix("hang."): item.status for item in findings}


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("setup", [[], [SETUP], [SETUP, C]])
def test_between_two_rounds_it_ran_fewer(tmp_path: Path, backend: str, setup: list[Op]) -> None:
    said = played(tmp_path, [*setup, *[A, B] * 5], [*setup, *[A, B] * 6], backend)
    assert (said["uneven_iterations"], said["rank_exited"]) == ("confirmed", "confirmed")


def departed_at(mine: list[Call], others: list[Call]) -> Divergence:
    """How rank 1, which ended in order, differs from ranks 0 and 2 by its calls."""
    result = departure(job({0: others, 1: mine, 2: others}, 3, errors=[ended()]), (1,))
    assert isinstance(result, Divergence)
    return result


def test_an_exit_is_compared_like_other_calls() -> None:
    between = departed_at(history(*[10, 20] * 3), [*history(*[10, 20] * 3), call(7, 10, size=10, done=False)])
    assert (between.kind, between.ended, between.culprits, between.peers) == (
        "fewer_iterations",
        "minority",
        (1,),
        (0, 2),
    )
    assert (between.minority.seq, between.majority.seq, between.confidence) == (6, 7, 0.85)
    more = departed_at(history(10, 20), [*history(10, 30, 20)])
    assert (more.kind, more.ended, more.culprits, more.position) == ("added", "majority", (0, 2), 2)
    assert (more.majority.seq, more.explanation.terms[0].name, more.confidence) == (2, "later calls agree", SEEN)


def test_calls_that_exited_ranks_never_made_are_told_with_what_shows_them(tmp_path: Path) -> None:
    extra, shared = Op(line=50, function="evaluate"), [Op(line=11), Op(line=12)]
    write(tmp_path, Job({0: [A, extra, *shared], 1: [A, *shared], 2: [A, *shared]}, backend="gloo"))
    findings = detect(evidence(tmp_path, world_size=3, errors=[ended(1), ended(2)]))
    (finding,) = (entry for entry in findings if entry.cause == "hang.conditional_collective")
    assert (finding.status, finding.ranks, finding.confidence) == ("confirmed", (0,), SEEN)
    first = "Only rank 0 calls all_reduce [8] float32 (#2, train.py:50); ranks 1 and 2 never do."
    assert finding.summary.startswith(f"{first} Without it, all next calls of both sides agree.")
    assert "not recorded" not in finding.summary and "now waits in all_reduce [8] float32 (#4" in finding.summary
    assert {item.file for item in finding.evidence} >= {"launcher.log", "tr_0"}


def test_a_rank_that_left_alone_is_told_from_those_that_left_after_their_last_call_failed(tmp_path: Path) -> None:
    """`dtk watch` records who left in order: rank 2 met a closed connection in its last call and went on to the end."""
    write(tmp_path, Job({0: [A, B] * 6, 1: [A, B] * 5, 2: [*[A, B] * 5, A]}, backend="gloo"))
    log_facts = [LogFact(IN_ORDER, rank, f"{rank}", 0, "", {}, 100.0 + rank) for rank in (1, 2)]
    findings = detect(evidence(tmp_path, world_size=3, facts=log_facts))
    sure = {finding.cause: finding.ranks for finding in findings if finding.status == "confirmed"}
    assert sure["hang.rank_exited"] == sure["hang.uneven_iterations"] == (1,)


@pytest.mark.parametrize(("extra", "culprits"), [(0, (2,)), (1, (1,))])
def test_ranks_that_ended_in_order_after_all_calls_are_not_blamed_beside_an_exit_code(
    tmp_path: Path, extra: int, culprits: tuple[int, ...]
) -> None:
    """Rank 2 ended with code 3 after the last collective; rank 1 ended in order, maybe before it."""
    write(tmp_path, Job({0: [A, B] * 5, 1: [A, B] * (5 - extra), 2: [A, B] * 5}, backend="gloo"))
    log_facts = [LogFact(IN_ORDER, rank, f"{rank}", 0, "", {}, 100.0 + rank) for rank in (0, 1)[extra:]]
    findings = detect(evidence(tmp_path, world_size=3, facts=log_facts, errors=[replace(ended(2), exit_code=3)]))
    (finding,) = (entry for entry in findings if entry.cause == "hang.rank_exited")
    assert (finding.status, finding.ranks) == ("confirmed", culprits)


@pytest.mark.parametrize("setup", [[], [SETUP]])
def test_within_a_round_it_only_ended(tmp_path: Path, setup: list[Op]) -> None:
    said = played(tmp_path, [*setup, *[A, B, C] * 5, A], [*setup, *[A, B, C] * 6], "gloo")
    assert (said["uneven_iterations"], said["rank_exited"]) == ("ruled_out", "confirmed")


@pytest.mark.parametrize(
    ("mine", "others", "options"),
    [
        ([A, B] * 5, [A, B] * 6, {"without": (1,)}),  # no dump
        ([FIRST, B, *[A, B] * 5, A], [FIRST, B, *[A, B] * 6], {}),  # where a round begins is not clear
        ([A, B], [A, B, A], {}),  # no loop
    ],
)
def test_what_cannot_be_told_is_undecided(
    tmp_path: Path, mine: list[Op], others: list[Op], options: dict[str, object]
) -> None:
    said = played(tmp_path, mine, others, "gloo", **options)
    assert (said["uneven_iterations"], said["rank_exited"]) == ("undecided", "confirmed")


SCRIPT = """
import os
import torch, torch.distributed as dist
def train(steps):
    x = torch.ones(8)
    for step in range(steps):
        dist.all_reduce(x)
        dist.all_reduce(x[:1])
dist.init_process_group("gloo")
rank = dist.get_rank()
try:
    train(10 - (rank == 1))
except RuntimeError:
    pass
with open(f"tr_{rank}", "wb") as file:
    file.write(torch._C._distributed_c10d._dump_fr_trace(True, True, False))
os._exit(0)
"""


def test_real_ranks_of_gloo(tmp_path: Path) -> None:
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
        "TORCH_FR_BUFFER_SIZE": "200", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=tmp_path, env={**environment, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(stretched(60)) for process in ranks] == [0, 0]
    result = confirmed(evidence(tmp_path, world_size=2, errors=[ended(), lost(0)]))
    assert result == [("uneven_iterations", (1,))], "the exit in order follows from it"


def lost(rank: int) -> RankError:
    return RankError(rank, "stderr.log", 1, "RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]:22912")


@pytest.mark.parametrize(
    ("mine", "others", "kind"),
    [
        # It left out a call of a round and made the rest of it, or it made one round less.
        ([10, 20] * 2 + [20] + [10, 20], [10, 20] * 3 + [10], "left_out"),
        ([10, 20, 30] * 2 + [20, 30] + [10, 20, 30], [10, 20, 30] * 3 + [10], "left_out"),
        ([10, 20] * 3, [10, 20] * 3 + [10], "fewer_iterations"),
        ([10, 20] * 3 + [20], [10, 20] * 3 + [10], "fewer_iterations"),  # The last one may come after the loop.
        ([30] * 3 + [10, 20] * 3, [30] * 3 + [10, 20] * 3 + [10], "fewer_iterations"),
    ],
)
def test_a_call_left_out_of_one_round_is_no_round_less(mine: list[int], others: list[int], kind: str) -> None:
    """Each line has a group of its own, as those of tensor and data parallelism: no sequence of one group tells it."""

    def calls(lines: list[int]) -> list[Call]:
        keys = {line: GroupKey("nccl", str(line), f"group {line}") for line in lines}
        numbered = [(line, lines[: n + 1].count(line), n) for n, line in enumerate(lines)]
        return [call(seq, line, key=keys[line], at_s=1e9 + n) for line, seq, n in numbered]

    waiting = calls(others)
    waiting[-1] = replace(waiting[-1], done=False)
    state = job({0: waiting, 1: calls(mine)}, 2, errors=[ended()])
    result = departure(state, (1,))
    assert isinstance(result, Divergence) and (result.kind, result.culprits) == (kind, (1,))
