"""Equality with HolisticTraceAnalysis 0.5.0 on the rows that it uses, and the exact figures of whole files."""

from pathlib import Path

import pytest

from diagnostics.analysis.step_profile.profile import RankProfile, profile
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.trace import TraceFile
from tests.shared_data import shared_data

# rank -> overlap, idle, compute, non-compute as HTA prints them; overlap of the whole file
FIGURES = {
    "dlrm8_v100": {
        0: (4.50, 49.34, 7.95, 42.71, 4.50),
        1: (2.47, 34.28, 6.65, 59.07, 2.47),
        2: (7.88, 62.08, 9.41, 28.51, 7.87),
        3: (3.31, 43.20, 6.58, 50.22, 3.31),
        4: (0.56, 53.57, 6.79, 39.64, 0.56),
        5: (0.64, 55.64, 6.35, 38.01, 0.64),
        6: (7.56, 61.80, 9.21, 28.99, 7.56),
        7: (9.51, 75.75, 9.66, 14.59, 9.51),
    },
    "hta_diff_control_a100": {3: (47.03, 16.20, 61.23, 22.57, 46.24)},
    "hta_ddp2_a100_nccl_args": {0: (14.31, 77.78, 17.26, 4.97, 15.61)},
    "hta_sampled128": {0: (11.81, 53.56, 17.71, 28.74, 14.95), 1: (20.05, 54.72, 22.57, 22.72, 19.93)},
}


def profiles(name: str) -> dict[int, RankProfile]:
    rank_profiles = [
        profile(TraceFile(path, path.name, None, Limits()).load())
        for path in shared_data(f"traces/{name}").glob("*.gz")
    ]
    return {rank_profile.rank: rank_profile for rank_profile in rank_profiles}


@pytest.mark.parametrize("name", FIGURES)
def test_equal_on_equal_rows_and_exact_on_whole_files(name: str) -> None:
    rank_profiles = profiles(name)
    assert set(rank_profiles) == set(FIGURES[name])
    for rank, (overlap, idle, compute, rest, exact) in FIGURES[name].items():
        hta = rank_profiles[rank].hta
        assert hta is not None
        assert (
            hta["overlap_percent"],
            hta["idle_percent"],
            hta["compute_percent"],
            hta["non_compute_percent"],
        ) == pytest.approx((overlap, idle, compute, rest), abs=0.0101)
        assert rank_profiles[rank].window.json()["overlap_percent"] == pytest.approx(exact, abs=0.0101)
        assert (hta["window"] == "without_last_step") == (len(rank_profiles[rank].steps) > 1)


def test_collectives_are_found_by_structure_in_real_traces() -> None:
    assert profiles("hta_ddp2_a100_nccl_args")[0].recognized_by == {"args": 21}
    assert profiles("hta_diff_control_a100")[3].recognized_by == {"annotation": 60}


def test_exposed_time_of_the_reference_table() -> None:
    exposed = {rank: rank_profile.window.json()["exposed_ms"] for rank, rank_profile in profiles("dlrm8_v100").items()}
    assert exposed == pytest.approx({0: 5.54, 1: 11.06, 2: 3.22, 3: 9.44, 4: 6.55, 5: 6.21, 6: 3.29, 7: 1.58}, abs=0.01)
    (diff,) = profiles("hta_diff_control_a100").values()
    assert diff.window.json()["exposed_ms"] == pytest.approx(86.6, abs=0.1)


def test_paths_do_not_matter(tmp_path: Path) -> None:
    source = shared_data("traces/dlrm8_v100/worker3_step_12.1694128201557.pt.trace.json.gz")
    copy = tmp_path / "unnamed.json.gz"
    copy.write_bytes(source.read_bytes())
    assert profile(TraceFile(copy, "x", None, Limits()).load()).rank == 3
