"""Every way to waste memory that a small training can have is found, and a healthy one confirms nothing."""

import json
import math
import pickle
import re
from collections import Counter
from pathlib import Path

import pytest

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.curve import Curve
from diagnostics.analysis.memory.measures import read
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.analysis.memory.over_time import over_time
from diagnostics.contract.findings import text_of
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.memory.levels import MAX_ROWS
from tests.dist import memory_ranks
from tests.dist.ranks import run_ranks
from tests.shared_data import shared_data
from tests.unit.diagnostics.causes.memory.jobs import confirmed, decided, findings, measures

MIB = 1 << 20
PARAMETERS = 96 * 128 + 4 * (128 * 512 + 512 + 512 * 128 + 128) + 128 * 96 + 96
BLOCK = 128 * 512 + 512 + 512 * 128 + 128
LOGITS = memory_ranks.BATCH * 64 * 96 * 4


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    run_ranks("tests.dist.memory_ranks:train", 2, str(folder))
    return folder


def line_of(case: str) -> int:
    lines = Path(memory_ranks.__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# case: {case}"))


@pytest.mark.parametrize("case", ["healthy", "healthy_replicas", "streamed", "one_at_a_time"])
def test_healthy_jobs_confirm_nothing(jobs, case):
    result = findings(jobs / case)
    assert confirmed(result) == []
    assert {result[name].status for name in ("full_gather", "no_reshard", "replicated_gather", "leak")} == {"ruled_out"}


@pytest.mark.parametrize(
    ("case", "cause", "line"),
    [
        ("root_only", "full_gather", False),
        ("whole_parameters", "full_gather", True),
        ("no_reshard", "no_reshard", False),
        ("gathered_logits", "replicated_gather", True),
        ("gathered_objects", "replicated_gather", True),
        ("state_dict", "full_state_dict", True),
        ("leak", "leak", False),
        ("unshard_all", "full_gather", False),
        ("one_by_one", "full_gather", False),
    ],
)
def test_one_cause_with_ranks_and_line(jobs, case, cause, line):
    result = findings(jobs / case)
    assert confirmed(result) == [cause]
    finding = result[cause]
    assert finding.ranks == (0, 1)
    if line:
        assert [(Path(w.file).name, w.line) for w in finding.where] == [("memory_ranks.py", line_of(case))]
    assert text_of(finding).remedies and text_of(finding).remedies[0].saves


@pytest.mark.parametrize(
    ("case", "cause", "expected_bytes"),
    [
        ("root_only", "full_gather", 4 * PARAMETERS),
        ("whole_parameters", "full_gather", 4 * PARAMETERS),
        ("unshard_all", "full_gather", 4 * (PARAMETERS - 2 * BLOCK)),
        ("one_by_one", "full_gather", 4 * PARAMETERS),
        ("no_reshard", "no_reshard", 2 * 4 * BLOCK),  # two of the four blocks are needed at once anyway
        ("gathered_logits", "replicated_gather", 2 * 2 * LOGITS),  # two steps, two ranks
        ("gathered_objects", "replicated_gather", 2 * MIB),
        ("state_dict", "full_state_dict", 4 * PARAMETERS),
        ("leak", "leak", 100 * 4 * PARAMETERS / 2),  # a shard's gradients a step, over 100 steps
    ],
)
def test_costs_are_the_bytes_that_the_code_wastes(jobs, case, cause, expected_bytes):
    cost = findings(jobs / case)[cause].cost
    assert cost is not None
    assert cost.unit == "bytes"
    assert cost.value == pytest.approx(expected_bytes, rel=0.02)


def test_copies_of_all_ranks_grow_with_the_ranks_and_gathered_parameters_do_not(jobs):
    def predicted(case: str, cause: str) -> tuple[float, float]:
        text = text_of(findings(jobs / case)[cause]).summary
        match = re.search(r"on 64 ranks, each rank would need ([\d.]+) MiB; without it, ([\d.]+) MiB", text)
        assert match, text
        return float(match[1]), float(match[2])

    with_copies, without = predicted("gathered_logits", "replicated_gather")
    assert with_copies - without == pytest.approx(64 * 2 * LOGITS / MIB, rel=0.02)
    with_whole, without = predicted("root_only", "full_gather")
    assert with_whole - without == pytest.approx(4 * PARAMETERS / MIB, rel=0.1)


def test_measures_have_a_short_curve_and_categories_that_add_up(jobs):
    recorded = json.loads(json.dumps(measures(jobs / "healthy")))
    for rank in ("0", "1"):
        record = recorded["ranks"][rank]
        assert 2 < len(record["curve"]) <= 500
        assert max(size for _, size in record["curve"]) == record["peak_bytes"]
        assert sum(record["categories"].values()) == pytest.approx(record["peak_bytes"], rel=1e-6)
        assert record["categories"]["optimizer states"] == pytest.approx(4 * PARAMETERS, rel=0.02)
    assert recorded["parameter_bytes"] == pytest.approx(4 * PARAMETERS, rel=0.02)


def _seconds(curve: Curve, time_us: float | None) -> float:
    return math.inf if time_us is None else round((time_us - curve.start_us) / 1e6, 6)


@pytest.mark.parametrize("case", sorted(memory_ranks.CASES))
def test_over_time_every_moment_holds_what_was_alive(jobs, case):
    """Against the sum of the allocations that live at that moment; what lay there before is computed."""
    measured_job = read(gather(jobs / case, Limits()))
    rank = measured_job.ranks[0]
    curve, stack = rank.curve, over_time(measured_job, rank)
    assert curve is not None and stack is not None
    before = measured_job.before_window(rank) or 0
    assert len(stack.rows) <= MAX_ROWS
    lives = [
        (_seconds(curve, allocation.start_us), _seconds(curve, allocation.end_us), allocation.size_bytes)
        for allocation in curve.allocations
    ]
    moments = Counter(time_s for life in lives for time_s in life[:2])  # torch's clock gives some events one time
    rows = [row for row in stack.rows if moments[row[0]] == 1]
    assert len(rows) > 50
    for row in rows:
        after = sum(kept for start_s, end_s, kept in lives if start_s <= row[0] < end_s)
        just_before = sum(kept for start_s, end_s, kept in lives if start_s < row[0] <= end_s)
        assert stack.in_tensors(row) - before in (after, just_before)
    peak = categories.peak(measured_job, rank)
    assert peak is not None
    by_kind = Counter[str]()
    for name, size in peak.categories.items():
        by_kind[categories.KIND_OF[name]] += size
    assert {name: size for name, size in stack.peak.kinds.items() if size} == by_kind


def test_over_time_tells_what_a_leak_keeps_and_where_gradients_are(jobs):
    def over(case: str, kind: str) -> list[float]:
        measured_job = read(gather(jobs / case, Limits()))
        stack = over_time(measured_job, measured_job.ranks[0])
        assert stack is not None
        return [row[1 + stack.kinds.index(kind)] for row in stack.rows] if kind in stack.kinds else [0.0]

    shard = 4 * PARAMETERS / 2
    # Not the most: on a busy machine gloo frees a block of a collective late, and it lies on top for a moment.
    for case, kind in (("leak", "kept from earlier steps"), ("healthy", "gradients")):
        assert any(size == pytest.approx(shard, rel=0.05) for size in over(case, kind))
    assert max(over("healthy", "optimizer states")) == pytest.approx(2 * shard, rel=0.05)
    assert max(over("healthy", "kept from earlier steps")) < 0.2 * shard


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("healthy", None),
        ("healthy_replicas", None),
        ("root_only", "full_gather"),
        ("whole_parameters", "full_gather"),
        ("no_reshard", "no_reshard"),
        ("gathered_objects", "replicated_gather"),
    ],
)
def test_flight_dumps_alone_show_who_gathers_what(jobs, tmp_path, case, cause):
    for rank in (0, 1):
        (tmp_path / f"dump_{rank}").write_bytes((jobs / case / f"dump_{rank}").read_bytes())
    result = findings(tmp_path)
    assert confirmed(result) == ([cause] if cause else [])
    assert result["leak"].status == "undecided"
    assert text_of(result["leak"]).missing


def test_without_frames_nobody_is_accused_by_sizes_alone(jobs, tmp_path):
    """Sequence parallelism gathers and scatters equal sizes too; only a job known to shard is judged by them."""
    for case in ("healthy", "root_only", "no_reshard"):
        (tmp_path / case).mkdir()
        for rank in (0, 1):
            dump = pickle.loads((jobs / case / f"dump_{rank}").read_bytes())  # noqa: S301  # our own
            for entry in dump["entries"]:
                del entry["frames"]
            (tmp_path / case / f"dump_{rank}").write_bytes(pickle.dumps(dump, 2))
        assert confirmed(findings(tmp_path / case)) == []


@pytest.mark.parametrize(
    ("case", "cause"), [("healthy", None), ("root_only", "full_gather"), ("no_reshard", "no_reshard")]
)
def test_black_boxes_of_a_job_that_shards_tell_it_by_sizes(jobs, case, cause, monkeypatch):
    """The last collectives of a killed rank have no frames, but a dtk run says that it shards and how large it is."""
    evidence = gather(jobs / case, Limits())
    evidence.files["trace"] = []
    whole = ModelSize(2, "fsdp", 4 * PARAMETERS, 4 * PARAMETERS, 8 * PARAMETERS, "summary.json", 2)
    monkeypatch.setattr("diagnostics.analysis.memory.model_size.read", lambda _: whole)
    monkeypatch.setattr("diagnostics.analysis.memory.gathers._caller", lambda _: ("unknown", False))
    findings = decided(evidence)
    assert confirmed(findings) == ([cause] if cause else [])


@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_1st", "gloo/missing", "gloo/rs", "gloo/obj", "gloo/steps"])
def test_dumps_of_jobs_that_hang_have_no_memory_cause(name):
    assert confirmed(findings(shared_data(f"flight/{name}"))) == []


def test_damaged_traces_decide_nothing_wrongly(jobs, tmp_path):
    for source in sorted((jobs / "leak").glob("trace_*")):
        data = source.read_bytes()
        (tmp_path / source.name).write_bytes(data[: len(data) // 3])
    assert "leak" not in confirmed(findings(tmp_path))


def test_names_of_files_do_not_matter(jobs, tmp_path):
    for rank in (1, 0):
        data = (jobs / "root_only" / f"trace_rank{rank}.json.gz").read_bytes()
        (tmp_path / f"zz{5 - rank}_window.json.gz").write_bytes(data)  # the trace itself says its rank
    result = findings(tmp_path)
    assert confirmed(result) == ["full_gather"]
    assert result["full_gather"].ranks == (0, 1)
