"""Exported memory timelines, written by torch's profiler itself."""

import gzip
import json
import warnings
from pathlib import Path

import pytest
import torch

from diagnostics.analysis.memory.measures import read
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits

_MS = 1_000_000
# (ns, action, bytes, category): parameters lie there before; activations, a gradient, the optimizer's states.
EVENTS = [
    [-1, 1, 1000, 0], [-1, 1, 24, 7], [10**18, 2, 5000, 4], [10**18 + _MS, 2, 1000, 5], [10**18 + _MS, 2, 300, 3],
    [10**18 + 2 * _MS, 4, -5000, 4], [10**18 + 2 * _MS, 4, -300, 3], [10**18 + 3 * _MS, 2, 2000, 1],
]  # fmt: skip
AT_PEAK = {"activations": 5000, "parameters": 1000, "gradients": 1000, "temporaries": 300, "unknown": 24}


def added_up() -> list[object]:
    """The same as torch adds it up, in microseconds; the first size of each row is always 0."""
    times: list[int] = []
    rows: list[list[int]] = []
    for time, _, size, category in EVENTS:
        at = 10**15 if time < 0 else time // 1000
        if not times or at != times[-1]:
            times.append(at)
            rows.append(list(rows[-1]) if rows else [0] * 9)
        rows[-1][category + 1] += size
    return [times, rows]


@pytest.mark.parametrize("content", [EVENTS, added_up()], ids=["raw", "added_up"])
def test_bytes_by_category_at_the_peak(tmp_path: Path, content: object) -> None:
    (tmp_path / "rank2_memory.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    report = diagnose(tmp_path)
    rank = report.measures["memory"]["ranks"]["2"]
    assert rank["categories"] == AT_PEAK and rank["peak_bytes"] == 7324
    assert rank["over_time"]["from"] == "memory_timeline" and rank["over_time"]["peak"]["time"] == 0.001
    assert report.outcome == "undecided"  # How the job ended is not known.


def test_what_torch_exports_has_the_same_peak_in_both_forms(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.Adam(model.parameters())
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as profiler:
        for _ in range(2):
            model(torch.ones(256, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    peaks = []
    for name in ("rank0.json", "rank0.raw.json.gz"):
        (folder := tmp_path / name.replace(".", "_")).mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            profiler.export_memory_timeline(str(folder / name), device="cpu")
        (rank,) = read(gather(folder, Limits())).ranks.values()
        assert rank.exported is not None and rank.exported.peak is not None
        peaks.append(rank.exported.peak[1])
    rows = json.loads((tmp_path / "rank0_json" / "rank0.json").read_text())[1]
    assert sum(peaks[0]) == sum(peaks[1]) == max(map(sum, rows))
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(("kept", "frees_gradients"), [(0, True), (0, False), (256, True), (256, False)])
def test_what_steps_leave_in_a_real_recording(tmp_path: Path, kept: int, frees_gradients: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.Adam(model.parameters())
    history = []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as profiler:
        for _ in range(7):
            model(torch.ones(256, 64)).sum().backward()
            history.append(torch.ones(kept, 256))
            optimizer.step()
            optimizer.zero_grad(set_to_none=frees_gradients)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        profiler.export_memory_timeline(str(tmp_path / "rank0.raw.json.gz"), device="cpu")
    report = diagnose(tmp_path)
    assert [cause.cause for cause in report.root_causes] == (["memory.leak"] if kept else [])
    if kept:
        cost = report.root_causes[0].cost
        assert cost is not None and cost.value == 100 * kept * 256 * 4
    else:
        (leak,) = [finding.finding for finding in report.findings if finding.finding.cause == "memory.leak"]
        assert leak.status == "ruled_out"


@pytest.mark.parametrize("content", [[[-1, 1, 5, 0], [-1, 1, 5, 3]], [[10**15, 10**15], [[0] * 9, [0] * 4]]])
def test_a_file_without_times_or_with_other_categories_is_one_line(tmp_path: Path, content: object) -> None:
    (tmp_path / "memory.json").write_text(json.dumps(content))
    with pytest.raises(DiagnosticsError, match=r"memory\.json: "):
        diagnose(tmp_path)


HONEST = json.dumps(EVENTS).encode()
DAMAGED = b"[[-1, 1, 37888, 7], [12, 1"
