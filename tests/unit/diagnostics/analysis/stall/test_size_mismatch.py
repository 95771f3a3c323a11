"""What a process that gloo ended was in, by its ring, where the peers are in a backward pass that no ring records."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.stall.explain import explain
from diagnostics.contract.findings import SURE, text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.ring.format import STARTED
from tests.unit.diagnostics.analysis.divergence.test_loop_exit import backward, job
from tests.unit.diagnostics.hang.dumps import Job, Op, detect, evidence, unexplained, write
from tests.unit.diagnostics.hang.rings import START_S, write_ring


def test_a_ring_tells_what_a_process_that_gloo_ended_was_in(tmp_path: Path) -> None:
    step = backward(8, 9, 7)
    write(tmp_path, job(2, step * 5, {0: step * 3}, backend="gloo"), without=(0,))
    flight = evidence(tmp_path).handles(FlightFile)
    rings = [write_ring(tmp_path / f"rank_{rank:05d}.ring", rank, 2, [STARTED] * (rank == 0), 90) for rank in (0, 1)]
    fact = LogFact("gloo_mismatch", 0, "stderr.log", 2, "4160 vs 4. Received data size doesn't match expected size")
    (finding,) = [
        item
        for item in unexplained(
            Evidence(tmp_path, Limits(), files={"flight": flight, "ring": rings}, facts=[fact], world_size=2)
        )
        if item.status == "confirmed"
    ]
    assert finding.ranks == (0,) and finding.where[0].line == 90 and "4160 vs 4" in finding.summary


def test_who_swallows_the_error_and_comes_to_the_same_call_was_in_the_loop(tmp_path: Path) -> None:
    last = Op(size=8, line=90, function="main")
    step = backward(80, 90, 70)
    write(tmp_path, job(2, [*step * 5, last], {0: step * 3}, backend="gloo"), without=(0,))
    flight = evidence(tmp_path).handles(FlightFile)
    rings = [write_ring(tmp_path / f"rank_{rank:05d}.ring", rank, 2, [STARTED], 90) for rank in (0, 1)]
    fact = LogFact("gloo_mismatch", 0, "stderr.log", 2, "320 vs 32. Received data size doesn't match expected size")
    files = {"flight": flight, "ring": rings}
    findings = unexplained(Evidence(tmp_path, Limits(), files=files, facts=[fact], world_size=2))
    (finding,) = [item for item in findings if item.status == "confirmed"]
    assert (finding.cause, finding.ranks, finding.where[0].line) == ("hang.uneven_iterations", (0,), 90)


def program(folder: Path, depth: int) -> Path:
    """A loop whose backward pass is line 2, and a call in line 7 behind it, or within it at a depth of 8."""
    path = folder / "train.py"
    path.write_text(
        "def step():\n    backward()\n\ndef main():\n    for step in range(9):\n        step()\n"
        + " " * depth
        + "last()\n"
    )
    os.utime(path, (START_S - 60, START_S - 60))
    return path


def play(ranks: int, path: Path) -> dict[int, dict[str, Any]]:
    """Return the dumps of ranks that ran five steps of the program's loop."""
    step = [Op(size=80, line=2, function="step", backward=True, caller=6)]
    dumps = job(ranks, step * 5, {}, backend="gloo").play()
    for entry in (entry for dump in dumps.values() for entry in dump["entries"]):
        own = [{**frame, "filename": str(path)} for frame in entry["frames"][2:]]
        entry["frames"] = [*entry["frames"][:2], *own]
    return dumps


def confirmed(folder: Path, dumps: dict[int, dict[str, Any]], inside: set[int], ended: int) -> list[Any]:
    """Return what is confirmed by the dumps, rings of all ranks of which some are in line 7, and gloo's line."""
    for rank, dump in dumps.items():
        (folder / f"tr_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    flight = [file for file in evidence(folder).handles(FlightFile) if file.file.startswith("tr_")]
    site, world = (str(folder / "train.py"), "main"), max({*dumps, *inside}) + 1
    rings = [
        write_ring(folder / f"rank_{n:05d}.ring", n, world, [STARTED] * (n in inside), 7, site=site)
        for n in range(world)
    ]
    fact = LogFact("gloo_mismatch", ended, "stderr.log", 2, "320 vs 32. Received data size doesn't match expected size")
    files = {"flight": flight, "ring": rings}
    findings = unexplained(Evidence(folder, Limits(), files=files, facts=[fact], world_size=world))
    return [(finding.cause, finding.ranks, finding.victims) for finding in findings if finding.status == "confirmed"]


CASES = pytest.mark.parametrize(
    ("depth", "cause"), [(4, "hang.uneven_iterations"), (8, "hang.conditional_collective")], ids=["behind", "within"]
)


@CASES
def test_the_line_of_a_ring_is_compared_in_the_function_that_both_are_in(
    tmp_path: Path, depth: int, cause: str
) -> None:
    dumps = play(2, program(tmp_path, depth))
    assert confirmed(tmp_path, {1: dumps[1]}, {0}, ended=0) == [(cause, (0,), (1,))]


@CASES
def test_the_one_rank_in_backward_is_to_blame_though_its_snapshot_is_older_and_without_frames(
    tmp_path: Path, depth: int, cause: str
) -> None:
    """Ranks 1 and 2 are in the call; gloo ends rank 2 when the next reduction of rank 0 comes in."""
    dumps = play(3, program(tmp_path, depth))
    dumps[0]["entries"] = [{**entry, "frames": []} for entry in dumps[0]["entries"][:3]]
    assert confirmed(tmp_path, {0: dumps[0], 1: dumps[1]}, {1, 2}, ended=2) == [(cause, (0,), (1, 2))]


def test_ranks_whose_calls_in_cpp_were_not_recorded_are_not_said_to_agree(tmp_path: Path) -> None:
    """The ring of `dtk watch` has calls from Python alone, and rank 0 ended before torch's recorder was dumped."""
    write(tmp_path, job(2, [Op(size=8, line=12)] * 5, {}, backend="gloo"), without=(0,))
    flight = evidence(tmp_path).handles(FlightFile)
    rings = [write_ring(tmp_path / f"rank_{rank:05d}.ring", rank, 2, [STARTED], 90) for rank in (0, 1)]
    findings = detect(Evidence(tmp_path, Limits(), files={"flight": flight, "ring": rings}, world_size=2))
    said = {finding.cause: finding for finding in findings}
    for cause in ("hang.conditional_collective", "hang.uneven_iterations"):
        assert said[cause].status == "undecided" and "calls of rank 0" in said[cause].summary


def test_recorded_calls_that_differ_explain_the_sizes_that_gloo_printed(tmp_path: Path) -> None:
    ops = [Op(line=line) for line in (10, 20, 10, 20)]
    write(tmp_path, Job({0: ops, 1: ops, 2: [*ops[:2], Op(size=4, line=10)]}, backend="gloo"))
    fact = LogFact("gloo_mismatch", 2, "stderr.log", 2, "32 vs 16. Received data size doesn't match expected size")
    result = evidence(tmp_path, world_size=3, facts=[fact])
    assert explain(result).job.size_mismatches(), "no part of the analysis decides what another one explains"
    assert [(finding.cause, finding.ranks, finding.basis) for finding in unexplained(result)] == [
        ("hang.signature_mismatch", (2,), "records")
    ]


PYTHON = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/job/train.py", line 30, in <module>
[rank{0}]:   File "/job/train.py", line {1}, in {2}
[rank{0}]:   File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in {3}
[rank{0}]: RuntimeError: [enforce fail at /gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. {4}
"""


@pytest.mark.parametrize(
    ("lost", "raised", "cause", "culprits"),
    [
        ({1: 9, 2: 9, 3: 9}, {0: (12, "all_reduce", "500 vs 4")}, "hang.collective_mismatch", (0,)),
        ({1: 9, 2: 9, 3: 9}, {0: (12, "broadcast", "500 vs 4")}, "hang.collective_mismatch", (0,)),
        ({0: 9, 1: 12, 3: 9}, {2: (9, "all_reduce", "752 vs 500")}, "hang.collective_mismatch", (1,)),
        ({0: 9, 1: 12, 3: 9}, {2: (9, "broadcast", "752 vs 500")}, "", ()),  # Rank 1 may be in the call before.
        # One statement, and the size of one rank is not that of the others.
        ({0: 9}, dict.fromkeys((1, 2, 3), (9, "all_reduce", "8 vs 4")), "hang.signature_mismatch", (0,)),
        ({0: 9, 2: 9}, dict.fromkeys((1, 3), (9, "all_reduce", "8 vs 4")), "", ()),  # Rank 0 or rank 2.
        ({0: 9, 1: 9, 3: 9}, {2: (9, "all_reduce", "8 vs 4")}, "", ()),  # Rank 2 or a peer of it.
        ({1: 9}, {0: (12, "all_reduce", "500 vs 4")}, "", ()),  # Of two ranks neither is the exception.
    ],
)
def test_the_sizes_in_tracebacks_vote_with_the_calls_of_the_ranks(
    tmp_path: Path,
    lost: dict[int, int],
    raised: dict[int, tuple[int, str, str]],
    cause: str,
    culprits: tuple[int, ...],
) -> None:
    texts = [PYTHON.format(rank, at, f"f{at}", op, sizes) for rank, (at, op, sizes) in raised.items()]
    texts += [LOST.format(rank, line, f"f{line}") for rank, line in lost.items()]
    (tmp_path / "job.log").write_text("".join(texts))
    report = diagnose(tmp_path)
    assert [(root.cause, root.ranks) for root in report.root_causes] == [(cause, culprits)] * bool(cause)
    if cause:
        assert (
            f"with messages of {next(iter(raised.values()))[2].split()[2]} bytes"
            in text_of(report.root_causes[0]).summary
        )
    elif len({*lost.values(), *(line for line, _, _ in raised.values())}) == 1:
        assert report.suspicions[0].cause == "hang.signature_mismatch"
    else:
        assert report.suspicions[0].cause != "hang.signature_mismatch"


@pytest.mark.parametrize("raise_in_python", [True, False])
def test_the_source_shows_that_one_rank_alone_makes_the_call(tmp_path: Path, raise_in_python: bool) -> None:
    """As any other two calls are compared, whether gloo's text is in a traceback or ended the process."""
    source = "def f9():\n    if rank == 0:\n        log()\n    all_reduce()\n\nfor step in steps:\n    f9()\n"
    path = tmp_path / "job" / "train.py"
    path.parent.mkdir()
    path.write_text(source)
    os.utime(path, (START_S - 60, START_S - 60))
    own = PYTHON.format(0, 3, "f9", "all_reduce", "500 vs 4") if raise_in_python else ABORTED.format(0, 3, "f9")
    text = own + "".join(LOST.format(rank, 4, "f9") for rank in (1, 2, 3))
    (tmp_path / "job.log").write_text(text.replace("/job/train.py", str(path)).replace("line 30", "line 7"))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks, root.victims) == ("hang.conditional_collective", (0,), (1, 2, 3))


LOST = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/job/train.py", line 30, in <module>
[rank{0}]:   File "/job/train.py", line {1}, in {2}
[rank{0}]:   File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank{0}]: RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:35
"""
ABORTED = """\
[rank{0}]:   what():  [enforce fail at /gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 50000 vs 1500.
[rank{0}]: Fatal Python error: Aborted
[rank{0}]:
[rank{0}]: Thread 0x00007f4996133b80 (most recent call first):
[rank{0}]:   File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
[rank{0}]:   File "/job/train.py", line {1} in {2}
[rank{0}]:   File "/job/train.py", line 30 in <module>
"""


@pytest.mark.parametrize(
    ("lost", "aborted", "culprits"),
    [
        ({0: 9, 1: 9, 3: 9}, {2: 12}, (2,)),
        ({1: 9, 2: 9, 3: 9}, {0: 12}, (0,)),
        ({0: 9, 1: 9, 4: 9, 5: 9}, {2: 12, 3: 12}, (2, 3)),
        ({0: 9, 1: 9, 3: 9}, {2: 9}, ()),  # One line, with sizes that differ.
        ({0: 9, 3: 12}, {2: 12}, ()),  # Where rank 1 was is unknown.
        ({0: 12, 1: 9, 3: 9}, {2: 9}, (0,)),  # No rank is long in an all_reduce that the others have left.
        ({0: 9, 1: 15, 3: 9}, {2: 12}, ()),  # Three places.
        ({0: 9}, {1: 12}, ()),  # Of two ranks neither is the exception.
    ],
)
def test_lines_of_tracebacks_tell_which_side_differs(
    tmp_path: Path, lost: dict[int, int], aborted: dict[int, int], culprits: tuple[int, ...]
) -> None:
    texts = [ABORTED.format(rank, line, f"f{line}") for rank, line in aborted.items()]
    texts += [LOST.format(rank, line, f"f{line}") for rank, line in lost.items()]
    (tmp_path / "job.log").write_text("".join(texts))
    findings = [
        finding
        for finding in detect(gather(tmp_path, Limits()))
        if finding.status == "confirmed" and finding.confidence >= SURE
    ]
    assert [finding.ranks for finding in findings] == [culprits] * bool(culprits)
    if culprits:
        victims = tuple(sorted({*lost, *aborted} - {*culprits}))
        assert (findings[0].cause, findings[0].victims) == ("hang.collective_mismatch", victims)
        assert (
            "train.py:12" in findings[0].summary
            and "50000 vs 1500" in findings[0].summary
            and findings[0].confidence <= 0.65
        )
