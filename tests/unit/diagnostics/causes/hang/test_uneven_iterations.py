"""A rank ran fewer or more steps of the loop than the others."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnostics.analysis.divergence.find import between
from diagnostics.analysis.vote import count_votes
from diagnostics.causes.hang._divergence import Disagreement
from diagnostics.causes.hang.uneven_iterations import READING
from diagnostics.evidence.model import Frame
from tests.unit.diagnostics.analysis.calls import DEFAULT, call
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.uneven_iterations"
END = Op("barrier", line=30, function="finish", caller=95)


@pytest.mark.parametrize(("steps", "times"), [(3, "fewer"), (5, "more")])
def test_one_rank_runs_the_loop_otherwise(tmp_path: Path, steps: int, times: str) -> None:
    programs = [[*STEP * (steps if rank == 1 else 4), END] for rank in range(4)]
    result = finding(tmp_path, job(*programs), CAUSE)
    assert (result.status, result.ranks) == ("confirmed", (1,))
    assert (
        f"{times} times than ranks 0, 2 and 3" in result.summary
        or "left the loop" in result.summary
        or "continues with" in result.summary
    )
    assert result.remedies[0].change.startswith("make all ranks run the same number of steps")
    assert result.remedies[0].why == "every rank must run the loop the same number of times"


def test_equal_steps_rule_it_out(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[[*STEP * 4, END]] * 4), CAUSE)
    assert result.status == "ruled_out"


@pytest.mark.parametrize(
    ("before", "skip"),
    [
        ("if bad(batch):\n            continue", 3),
        ("if bad(batch):\n            break", 0),
        ("if bad(batch):\n            return", 0),
        ("check(\n            batch)", 0),
    ],
)
def test_what_may_skip_the_call_in_one_iteration_is_named(tmp_path: Path, before: str, skip: int) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        f"def train(batches):\n    for batch in batches:\n        {before}\n        all_reduce()\n    barrier()\n"
    )
    os.utime(program, (1, 1))
    past = [replace(call(seq), stack=(Frame(str(program), 5, "train"),)) for seq in range(1, 7)]
    end = replace(call(6, op="barrier"), stack=(Frame(str(program), 6, "train"),))
    vote = count_votes(DEFAULT, 6, {0: 1, 1: 2, 2: 1}, range(3))
    case = between(vote, lambda rank, _: [*past[:5], end] if rank == 1 else past)
    assert case is not None and (case.kind, case.culprits) == ("fewer_iterations", (1,))
    facts = Disagreement(case, case.kind, READING)
    assert facts.skip == (f"{program}:{skip}" if skip else "")
    assert ("skipped an iteration" in READING.summary(facts)) == bool(skip)
    fix = READING.remedies(facts)[0].change
    assert (f"skipped an iteration (the condition, or the exception that is caught, at {program}:3)" in fix) == bool(
        skip
    )
