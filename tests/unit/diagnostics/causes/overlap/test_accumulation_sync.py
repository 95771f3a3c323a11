import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.trace_scenarios import SCENARIOS


def without_marks(folder: Path, *names: str) -> None:
    for path in folder.iterdir():
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        trace["traceEvents"] = [
            traceevent for traceevent in trace["traceEvents"] if not str(traceevent.get("name", "")).startswith(names)
        ]
        with opened(path, "wt", encoding="utf-8") as file:
            json.dump(trace, file)


@pytest.mark.parametrize("unmarked", [("ProfilerStep",), ("ProfilerStep", "Optimizer", "optimizer")])
def test_without_marked_steps_backward_passes_are_not_taken_for_micro_batches(
    tmp_path: Path, detect: Any, unmarked: tuple[str, ...]
) -> None:
    for scenario in SCENARIOS:
        if scenario.name in ("accumulation", "ddp"):
            write(scenario.build(), tmp_path / scenario.name)
            without_marks(tmp_path / scenario.name, *unmarked)
            result = {finding.cause: finding for finding in detect(tmp_path / scenario.name).findings}[
                "overlap.accumulation_sync"
            ]
            assert result.status != "confirmed"
            if scenario.name == "accumulation":
                assert result.status == "undecided"
                assert "profiler.step()" in text_of(result).missing
