"""What the record of a dtk run says: whether dtk had to find the blocks of a model of the user's own."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.model import RunEvidence


def run(architecture: str, blocks_per_unit: Any) -> RunEvidence:
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
    assert run(architecture, blocks_per_unit).searches_blocks is unknown
