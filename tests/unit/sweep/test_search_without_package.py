"""A sweep where the package sweeps is not installed: grids run, searches say what they need."""

import pytest

from dtk.config.folders import SWEEPS, conf_folder
from dtk.errors import DtkError
from dtk.sweep import search
from dtk.sweep.file import read
from tests.unit.sweep.files import BAYES, GRID, RANDOM, write


@pytest.fixture(autouse=True)
def not_installed(monkeypatch):
    monkeypatch.setattr(search, "find_spec", lambda name: None)


def test_the_readmes_sweep_needs_no_extra():
    points = search.load(read(conf_folder() / SWEEPS / "strategies.yaml")).grid()
    assert [point["strategy"] for point in points] == ["ddp", "zero1", "zero2", "fsdp"]


@pytest.mark.parametrize(
    "content",
    [
        BAYES,
        RANDOM,
        {**GRID, "metric": BAYES["metric"], "early_terminate": {"type": "hyperband", "min_iter": 1}},
        {**GRID, "parameters": {"optimizer.lr": {"min": 0.1, "max": 0.9, "q": 0.1}}},
    ],
)
def test_what_needs_the_package_says_so(content, tmp_path):
    with pytest.raises(
        DtkError, match=r"needs the search of the package sweeps; a grid of lists does not.*install it:"
    ):
        search.load(read(write(tmp_path, content)))
