"""Real dumps and traces that lie beside a developer's checkout; tests that need them skip where they are absent."""

from pathlib import Path

import pytest


def shared_data(name: str) -> Path:
    """A file or folder below `shared/data`, found by walking up from the repository."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "shared" / "data" / name
        if path.exists():
            return path
    pytest.skip(f"real data is not here: shared/data/{name}")
