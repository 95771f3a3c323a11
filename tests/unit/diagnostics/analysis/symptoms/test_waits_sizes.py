"""A process that gloo ended because two sizes do not match."""

from pathlib import Path

from diagnostics.causes.suspicions import clues
from tests.unit.diagnostics.analysis.symptoms.test_gather import GLOO, ended, read

MISMATCH = (
    "  what():  [enforce fail at /gloo/pair.cc:456] op.preamble.length <= op.nbytes. 900 vs 4. Received data size\n"
)


KILLED = "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 70)\n  error_file: <N/A>\n"


def test_the_calls_of_those_who_lost_the_process_that_gloo_ended(tmp_path: Path) -> None:
    aborts = f"{MISMATCH}[0]:\n  time      : 2024-03-05_07:01:51\n  host      : a\n{KILLED}"
    symptoms = read(tmp_path, aborts + ended(1, "all_gather", GLOO) + ended(2, "all_gather", GLOO))
    assert [(wait.ranks, wait.op, wait.site) for wait in symptoms.peer_calls] == [((1, 2), "all_gather", "train.py:9")]
    assert not symptoms.of_model and not symptoms.mismatched
    sharded = '[rank{}]:   File "/lib/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", line 3, in unshard\n'
    gathers = "".join(
        ended(rank, "all_gather", GLOO).replace(
            f"[rank{rank}]:     dist", f"{sharded.format(rank)}[rank{rank}]:     dist"
        )
        for rank in (1, 2)
    )
    symptoms = read(tmp_path, aborts + gathers)
    assert symptoms.of_model and symptoms.mismatched == (0,)


def test_two_lines_are_two_calls_whose_sizes_say_nothing_of_a_dtype(tmp_path: Path) -> None:
    """8 vs 4 bytes: two dtypes of one statement, but of two lines just two calls."""
    error = f"RuntimeError: {MISMATCH.strip().removeprefix('what():  ').replace('900', '8')}"
    for line, statements in ((9, 1), (4, 2)):
        symptoms = read(tmp_path, ended(0, "all_reduce", error, line) + ended(1, "all_reduce", GLOO))
        shown = clues(symptoms)
        assert symptoms.statements == statements
        assert ("one_statement" in shown, "twice" in shown) == (statements == 1, statements == 1)
