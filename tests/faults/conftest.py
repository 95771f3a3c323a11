"""The folder in which all test workers of a session share their fault runs."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fault_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "faults"
