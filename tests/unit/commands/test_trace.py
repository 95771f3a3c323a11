"""`dtk trace`: what is said of the file that was written."""

from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from dtk.commands.main import main
from dtk.runs import trace


def test_the_sum_is_told_with_what_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Path] = []

    class Merged:
        def __init__(self, run: Path) -> None:
            self.run, self.problems, self.ranks, self.events = run, ["rank 1: no trace"], [0, 2], 12345
            self.flows = {1: (0, 5, 2, 9), 2: (0, 5, 0, 5), 3: (0, 6, 1, 7)}

        def write(self, out: Path) -> None:
            written.append(out)

    monkeypatch.setattr(trace, "Merge", Merged)
    RunPaths(tmp_path / "run").status.parent.mkdir()
    RunPaths(tmp_path / "run").status.write_text("{}")
    assert main(["trace", str(tmp_path / "run"), "--out", str(tmp_path / "all.json.gz")]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "problem  rank 1: no trace" and written == [tmp_path / "all.json.gz"]
    assert second.endswith("all.json.gz: 2 ranks, 12,345 events, 2 collectives linked across ranks")
    assert "ui.perfetto.dev" in third
