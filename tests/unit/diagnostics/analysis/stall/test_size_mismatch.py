"""What a process that gloo ended was in, by its ring, where the peers are in a backward pass that no ring records."""

import os
import pickle
from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.ring.format import STARTED
from tests.unit.diagnostics.analysis.divergence.test_loop_exit import backward, job
from tests.unit.diagnostics.hang.dumps import Op, detect, evidence, write
from tests.unit.diagnostics.hang.rings import START_S, write_ring


def test_a_ring_tells_what_a_process_that_gloo_ended_was_in(tmp_path: Path) -> None:
    step = backward(8, 9, 7)
    write(tmp_path, job(2, step * 5, {0: step * 3}, backend="gloo"), without=(0,))
    flight = evidence(tmp_path).handles(FlightFile)
    rings = [write_ring(tmp_path / f"rank_{rank:05d}.ring", rank, 2, [STARTED] * (rank == 0), 90) for rank in (0, 1)]
    fact = LogFact("gloo_mismatch", 0, "stderr.log", 2, "4160 vs 4. Received data size doesn't match expected size")
    (one,) = [
        one
        for one in detect(
            Evidence(tmp_path, Limits(), files={"flight": flight, "ring": rings}, facts=[fact], world_size=2)
        )
        if one.status == "confirmed"
    ]
    assert one.ranks == (0,) and one.where[0].line == 90 and "4160 vs 4" in one.summary


def test_who_swallows_the_error_and_comes_to_the_same_call_was_in_the_loop(tmp_path: Path) -> None:
    last = Op(size=8, line=90, function="main")
    step = backward(80, 90, 70)
    write(tmp_path, job(2, [*step * 5, last], {0: step * 3}, backend="gloo"), without=(0,))
    flight = evidence(tmp_path).handles(FlightFile)
    rings = [write_ring(tmp_path / f"rank_{rank:05d}.ring", rank, 2, [STARTED], 90) for rank in (0, 1)]
    fact = LogFact("gloo_mismatch", 0, "stderr.log", 2, "320 vs 32. Received data size doesn't match expected size")
    found = detect(Evidence(tmp_path, Limits(), files={"flight": flight, "ring": rings}, facts=[fact], world_size=2))
    (one,) = [one for one in found if one.status == "confirmed"]
    assert (one.cause, one.ranks, one.where[0].line) == ("hang.uneven_iterations", (0,), 90)


@pytest.mark.parametrize(
    ("depth", "cause"), [(4, "hang.uneven_iterations"), (8, "hang.conditional_collective")], ids=["behind", "within"]
)
def test_the_line_of_a_ring_is_compared_in_the_function_that_both_are_in(
    tmp_path: Path, depth: int, cause: str
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "def step():\n    backward()\n\ndef main():\n    for step in range(9):\n        step()\n"
        + " " * depth
        + "last()\n"
    )
    os.utime(program, (START_S - 60, START_S - 60))
    step = [Op(size=80, line=2, function="step", backward=True, caller=6)]
    for rank, dump in job(2, step * 5, {0: step * 3}, backend="gloo").play().items():
        for entry in dump["entries"]:
            own = [{**one, "filename": str(program)} for one in entry["frames"][2:]]
            entry["frames"] = [*entry["frames"][:2], *own]
        if rank:
            (tmp_path / f"tr_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    flight = [file for file in evidence(tmp_path).handles(FlightFile) if file.file.startswith("tr_")]
    site = (str(program), "main")
    rings = [write_ring(tmp_path / f"rank_{n:05d}.ring", n, 2, [STARTED] * (n == 0), 7, site=site) for n in (0, 1)]
    fact = LogFact("gloo_mismatch", 0, "stderr.log", 2, "320 vs 32. Received data size doesn't match expected size")
    found = detect(Evidence(tmp_path, Limits(), files={"flight": flight, "ring": rings}, facts=[fact], world_size=2))
    assert [(one.cause, one.ranks) for one in found if one.status == "confirmed"] == [(cause, (0,))]
