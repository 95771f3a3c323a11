"""Steps as JSON lines: dtk's own metrics and what others write, and what follows from them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits

NAN = float("nan")


def jumping(step: str, loss: str, norm: str, **more: Any) -> list[dict[str, Any]]:
    """150 steps that learn, and 40 behind a jump."""
    rows = [{step: n, loss: 4 - n / 100 + (n % 7) / 100, norm: 1.0 + (n % 5) / 10, **more} for n in range(1, 151)]
    return rows + [{step: n, loss: 7.5 + (n % 7) / 100, norm: 40.0, **more} for n in range(151, 191)]


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("keys", "more"),
    [
        (("step", "loss", "grad_norm"), {"time_s": 1.0, "attempt": 0, "tokens_per_s": None}),
        (("global_step", "train/loss", "train/grad_norm"), {"lr": 1e-4}),
        (("_step", "train_loss", "gnorm"), {"_runtime": 3.5, "note": "x"}),
    ],
)
def test_a_jump_of_the_loss_is_found_whoever_wrote_the_records(
    tmp_path: Path, keys: tuple[str, str, str], more: dict[str, Any]
) -> None:
    report = diagnose(written(tmp_path / "metrics.jsonl", jumping(*keys, **more)))
    assert [root.cause for root in report.root_causes] == ["numeric.spike"] and report.root_causes[0].step == 151
    assert report.root_causes[0].evidence[0].line == 151


def test_records_without_a_loss_and_lines_that_are_none_are_passed_over(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"config": {"lr": 1}},
        {"step": 0, "validation_loss": 9.0},
        "{torn",
        "[1]",
        {"step": True, "loss": 1},
    ]
    rows += [{"step": n, "loss": 2.0 if n < 15 else NAN, "grad_norm": None} for n in range(1, 20)]
    rows += [{"step": 20, "loss": "9" * 5}, '{"step": 21, "loss": ' + "9" * 400 + "}", {"step": [], "loss": 1}]
    facts = gather(written(tmp_path / "log.jsonl", rows).parent, Limits()).facts
    (series,) = facts[0].fields["steps"].series.values()
    assert [*series.lines] == [*range(6, 26)] and [*series.step] == [*range(1, 21)]
    assert set(series.printed) == {1} and series.is_non_finite()


def test_other_json_lines_are_left_to_their_readers(tmp_path: Path) -> None:
    pod = {"log": 'step 3 loss: 2.0 "loss": 3', "stream": "stderr", "time": "2026-01-01T00:00:00Z"}
    written(tmp_path / "pod.jsonl", [pod] * 30)
    written(tmp_path / "rank_00000.jsonl", [{"kind": "event", "name": "epoch", "step": 3}] * 30)
    written(tmp_path / "few.jsonl", [{"step": 1, "loss": 2.0}])
    written(tmp_path / "job.log", [f"step {n} loss: 2.{n}" for n in range(20)])
    evidence = gather(tmp_path, Limits())
    assert {(fact.kind, fact.file) for fact in evidence.facts} == {("steps", "job.log")}


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    first = json.dumps({"step": 1, "loss": 2.0}).encode() + b"\n"
    (tmp_path / "m.jsonl.gz").write_bytes(gzip.compress(first + b" " * (80 << 20)))
    with pytest.raises(DiagnosticsError, match="limit-scale"):
        gather(tmp_path, Limits())


def test_a_finished_run_of_dtk_is_judged_by_its_own_records(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "finished", "attempt": 0, "schema_version": 1, "step": 190}')
    (tmp_path / "manifest.json").write_text('{"run_id": "r", "schema_version": 1}')
    written(tmp_path / "metrics.jsonl", jumping("step", "loss", "grad_norm"))
    assert diagnose(tmp_path).root_causes[0].cause == "numeric.spike"


HONEST = b"".join(json.dumps({"step": n, "loss": 4 - n / 100}).encode() + b"\n" for n in range(400))
DAMAGED = gzip.compress(HONEST, mtime=0)[:-20]
