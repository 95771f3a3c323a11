"""Whether dtk was to find the blocks of a model of the user's own."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.causes._own_model import blocks_unknown
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
    assert blocks_unknown(run(architecture, blocks_per_unit)) is unknown


def test_without_a_run_nothing_was_to_be_found() -> None:
    assert not blocks_unknown(None)
