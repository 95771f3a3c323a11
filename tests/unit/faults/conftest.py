"""A loop with a fault in it, as the only rank of a gloo group."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dtk.faults.install import install
from dtk.train.loop import Loop
from tests.unit.train.conftest import Build, alone, build, config  # noqa: F401

Faulty = Callable[..., Any]


@pytest.fixture
def faulty(build: Build) -> Faulty:  # noqa: F811
    """Make a loop of four steps whose fault is due at a step on a rank: faulty(name, step, rank)."""

    def make(name: str, step: int = 2, rank: int = 0, delay_s: float = 0.0) -> Loop:
        loop = build(config())
        loop.config = SimpleNamespace(  # type: ignore[assignment]
            **{field: getattr(loop.config, field) for field in loop.config.__dataclass_fields__}
            | {"fault": SimpleNamespace(name=name, step=step, rank=rank, delay_s=delay_s, times=3)}
        )
        return install(loop)

    return make
