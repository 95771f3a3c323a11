"""What the tests of several modules share: points that are frozen once, launches that are stood in for."""

import pytest

from dtk.sweep import local as module
from dtk.sweep.folder import freeze
from tests.cli.command import TINY
from tests.unit.sweep.launches import Launches


@pytest.fixture
def launches(tmp_path, monkeypatch):
    result = Launches(tmp_path)
    monkeypatch.setattr(module, "run_point", result)
    return result


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    names = ("ddp", "zero1", "fsdp")
    return [
        freeze(i, f"strategy={name}", [f"strategy={name}", f"runs_folder={folder}", *TINY], None)
        for i, name in enumerate(names)
    ]
