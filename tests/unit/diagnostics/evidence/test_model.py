"""Values that readers share: what a path states, a configuration's keys, short texts, the blocks of a model."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Owner, RunEvidence, owner, rank_in_name, shortened
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.readers.trace import TraceFile


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("comm_lib_trace_rank_12", 12),
        ("node-7_tr_3.json", 3),
        ("llama_rank_7b_3.pickle", 3),
        ("rank_00005.blackbox.json", 5),
        ("Rank3.pt.trace.json.gz", 3),
        ("frank_9.pickle", 9),
        ("dump.pickle", None),
        ("rank3/dump.pickle", 3),
        ("rank3/dump_8.pickle", 8),
        ("node4/dump.pickle", None),
    ],
)
def test_the_rank_that_a_name_states(name, rank):
    assert rank_in_name(Path("/job") / name) == rank


@given(st.integers(0, 9_999_999))
@settings(max_examples=50)
def test_any_rank_is_found_behind_the_word(rank):
    assert rank_in_name(Path(f"/job/20260101_rank_{rank}_v2.json")) == rank


@given(st.text(max_size=60), st.integers(4, 80))
@settings(max_examples=80)
def test_a_shortened_text_keeps_to_its_limit(text, limit):
    short = shortened(text, limit)
    assert len(short) <= limit
    assert short == text or (short.endswith("...") and text.startswith(short[:-3]))


def run(config):
    return RunEvidence(Path("/run"), None, config, {}, {}, {}, {}, {})


def test_a_key_of_the_configuration():
    evidence = run({"strategy": {"name": "ddp", "bucket_cap_mb": 25}, "fault": "none"})
    assert evidence.get("strategy.bucket_cap_mb") == 25
    assert evidence.get("strategy.reduce_dtype") is None
    assert evidence.get("strategy.name.first", "absent") == "absent", "a text has no keys"
    assert evidence.get("fault.name", 1) == 1


@pytest.mark.parametrize(
    ("config", "injected"),
    [({"fault": {"name": "kill"}}, "kill"), ({"fault": {"name": "none"}}, ""), ({"fault": {"name": 3}}, ""), ({}, "")],
)
def test_the_fault_that_was_planted(config, injected):
    assert run(config).injected == injected


def test_paths_are_printed_relative_to_the_root(tmp_path):
    evidence = Evidence(tmp_path, Limits())
    assert evidence.relative(tmp_path / "flight" / "rank_0.pickle") == "flight/rank_0.pickle"
    assert evidence.relative(Path("/elsewhere/x")) == "/elsewhere/x"


def test_files_of_a_kind_can_be_added_to():
    evidence = Evidence(Path("/"), Limits())
    evidence.handles(TraceFile).append("one")
    assert evidence.files == {"trace": ["one"]}
    assert evidence.handles(TraceFile) == ["one"]
    assert evidence.handles(FlightFile) == evidence.handles(RingFile) == []


def custom_run(architecture: str, blocks_per_unit: Any) -> RunEvidence:
    config = {"model": {"architecture": architecture}, "strategy": {"blocks_per_unit": blocks_per_unit}}
    nothing: Any = {}
    return RunEvidence(Path("job"), None, config, nothing, nothing, nothing, nothing, nothing)


@pytest.mark.parametrize(
    ("architecture", "blocks_per_unit", "unknown"),
    [("custom", 1, True), ("custom", 0, False), ("gpt2", 1, False), ("custom", "all", False), ("custom", None, False)],
)
def test_only_a_model_of_the_users_own_in_units_of_blocks(
    architecture: str, blocks_per_unit: Any, unknown: bool
) -> None:
    assert custom_run(architecture, blocks_per_unit).searches_blocks is unknown


@pytest.mark.parametrize(
    ("path", "whose"),
    [
        ("logs/rank_3.log", Owner(3)),
        ("Rank-12/stderr.txt", Owner(12)),
        ("job.rank=7.out", Owner(7)),
        ("rank3_of_8.log", Owner(3)),
        ("llama_rank_7b/train.log", Owner()),
        ("slurm-123456.out", Owner()),
        ("2026-01-01_train.log", Owner()),
        ("frank_4.log", Owner()),
        ("trainer_2.log", Owner(2)),
        ("task-5.err", Owner(5)),
        ("homeworker2.log", Owner()),
        ("stderr.1", Owner(1)),
        ("attempt_1/3/stderr.log", Owner(None, 3, 1, "")),
        ("run/node_a/attempt_0/7/stdout.log", Owner(None, 7, 0, "run/node_a")),
        ("attempt_0/rank_00002/stderr.log", Owner(2, attempt=0)),
        ("attempt_0/123456/stderr.log", Owner(attempt=0)),
        ("attempt_x/3/trainer_4.log", Owner(4)),
        ("rank_1/rank_2.log", Owner(2)),
    ],
)
def test_whose_file_it_is(path, whose):
    assert owner(Path(path)) == whose


@given(st.integers(0, 9_999_999), st.integers(0, 99))
@settings(max_examples=60)
def test_any_rank_and_attempt_is_read_back(rank, attempt):
    result = owner(Path(f"attempt_{attempt}/rank_{rank:05d}/stderr.log"))
    assert (result.rank, result.attempt, result.local_rank) == (rank, attempt, None)
