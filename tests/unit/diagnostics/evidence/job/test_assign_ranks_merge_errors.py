"""One record of an end of which several files tell."""

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from diagnostics.evidence.job.assign_ranks import merge_errors
from diagnostics.evidence.model import Frame, RankError

RAISED = RankError(0, "logs/rank_0.log", 40, "ValueError", "bad batch", (Frame("train.py", 12, "step"),))
ELASTIC = RankError(0, "error.json", 0, "ValueError", "bad  batch\nof step 7", exit_code=1, time_s=100.0)
LISTED = RankError(0, "logs/torchrun.log", 90, "", "exit code 1", exit_code=1)
STATUS = RankError(0, "status.json", 0, "", "exit code 1", exit_code=1, step=7, region="forward")


def test_the_fullest_record_is_given_what_only_another_has():
    (merged,) = merge_errors([STATUS, LISTED, ELASTIC, RAISED])
    assert (merged.file, merged.line, merged.frames) == (RAISED.file, 40, RAISED.frames)
    assert (merged.exit_code, merged.time_s, merged.step, merged.region) == (1, 100.0, 7, "forward")


@given(st.permutations([RAISED, ELASTIC, LISTED, STATUS, replace(RAISED, rank=1), replace(LISTED, rank=None)]))
@settings(max_examples=60)
def test_the_order_of_the_files_changes_nothing(errors):
    assert merge_errors(errors) == merge_errors(sorted(errors, key=repr))


def test_merging_again_changes_nothing():
    once = merge_errors([RAISED, ELASTIC, LISTED, replace(RAISED, type="KeyError", message="'x'")])
    assert merge_errors(once) == once


@pytest.mark.parametrize(
    ("other", "count"),
    [
        (replace(RAISED, file="b.log", message="another one"), 2),
        (replace(RAISED, file="b.log", type="KeyError"), 2),
        (replace(LISTED, signal="SIGTERM", exit_code=-15), 2),
        (replace(LISTED, signal="SIGABRT", exit_code=-6), 1),
        (replace(RAISED, file="b.log", message="bad batch of 7"), 1),
        (replace(RAISED, rank=1), 2),
    ],
)
def test_what_may_tell_of_the_same_end(other, count):
    """An exception in C++ ends in SIGABRT; another signal ended the process without it."""
    assert len(merge_errors([RAISED, other])) == count


def test_two_signals_are_two_ends():
    first, other = (replace(LISTED, signal=name, exit_code=None) for name in ("SIGKILL", "SIGTERM"))
    assert len(merge_errors([first, other])) == 2
    assert len(merge_errors([first, replace(LISTED, exit_code=-9)])) == 1


def test_records_without_a_rank_are_kept_once_each():
    homeless = replace(RAISED, rank=None)
    repeated = replace(homeless, file="z.log", message="bad\nbatch")
    other = replace(homeless, message="bad")
    assert merge_errors([homeless, repeated, other]) == [other, homeless]


def test_ranks_come_in_order_and_those_without_one_last():
    errors = [replace(RAISED, rank=None), replace(RAISED, rank=2, time_s=5.0), replace(RAISED, rank=0),
              replace(RAISED, rank=2, type="KeyError", time_s=1.0)]  # fmt: skip
    assert [(e.rank, e.time_s) for e in merge_errors(errors)] == [(0, None), (2, 1.0), (2, 5.0), (None, None)]
