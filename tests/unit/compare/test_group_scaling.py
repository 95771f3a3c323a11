"""Scaling over numbers of ranks: strong and weak series, efficiency, and what is no series."""

from pathlib import Path

import pytest

from dtk.compare.compare import compare
from tests.unit.compare.folders import make_run


def test_scaling_with_the_batch_kept_and_with_the_batch_growing(tmp_path: Path) -> None:
    strong = [make_run(tmp_path, f"s{n}", world_size=n, times_s=0.4 / n * (1 + 0.25 * (n > 1))) for n in (1, 2, 4)]
    comparison = compare(strong)
    assert [(row.kind, row.world_size) for row in comparison.scaling] == [("strong", 1), ("strong", 2), ("strong", 4)]
    assert [row.efficiency for row in comparison.scaling] == pytest.approx([1.0, 0.8, 0.8])
    weak = [
        make_run(tmp_path, f"w{n}", world_size=n, times_s=0.1 * n, change={"train.global_batch_size": 8 * n})
        for n in (1, 2)
    ]
    grown = compare(weak)
    assert grown.fair
    assert [(row.kind, row.efficiency) for row in grown.scaling] == [("weak", 1.0), ("weak", pytest.approx(0.5))]
