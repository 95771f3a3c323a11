import gzip
import math

import pytest

from tests.unit.diagnostics.causes.numeric.runs import recorded, write

NAN = math.nan


def read(folder, records, limits=None):
    write(folder, records)
    (fact,) = (fact for fact in recorded(folder, limits).facts if fact.kind == "metrics")
    return fact.fields["metrics"]


def test_the_first_bad_figure_of_each_kind(tmp_path):
    result = read(
        tmp_path,
        [
            {"step": 1, "loss": 5.0, "grad_norm": 1.0},
            {"step": 2, "loss": 4.0, "grad_norm": math.inf},
            {"step": 3, "loss": NAN, "grad_norm": NAN},
            {"step": 4, "loss": NAN, "grad_norm": None},
        ],
    )
    norm, loss = result.bad["grad_norm"], result.bad["loss"]
    assert (norm.step, norm.line, norm.value, norm.step_before) == (2, 2, "inf", 1)
    assert (loss.step, loss.line, loss.value, loss.step_before) == (3, 3, "nan", 2)
    assert (result.records, result.last_step, result.lowest, result.last_finite) == (4, 4, 4.0, 4.0)
    assert not result.recovered


def test_steps_that_were_run_again_replace_those_before(tmp_path):
    records = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": NAN}, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    result = read(tmp_path, records)
    assert result.bad == {}
    assert result.last_finite == 1.0


def test_an_evaluation_of_the_same_step_is_no_restart(tmp_path):
    result = read(tmp_path, [{"step": 2, "loss": NAN}, {"step": 2, "validation_loss": 3.0}])
    assert set(result.bad) == {"loss"}


def test_damaged_lines_are_passed_over(tmp_path):
    lines = [
        '{"step": 1, "loss"',
        "[1, 2]",
        '{"step": "x", "loss": NaN}',
        "{" * 5000,
        '{"step": 3, "loss": 1e999}',
        "\0",
    ]
    result = read(tmp_path, [*lines, {"step": True, "loss": [1]}, '{"step": 4, "loss": ' + "9" * 400 + "}"])
    assert [(item.figure, item.step, item.line) for item in result.bad.values()] == [("loss", 3, 5)]


def test_a_long_line_is_cut_and_no_memory_is_lost(tmp_path):
    result = read(tmp_path, ["x" * 3_000_000, {"step": 1, "loss": 1.0}])
    assert result.records == 1


def test_a_compressed_bomb_is_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(gzip.compress(b" " * (80 << 20)))
    with pytest.raises(ValueError, match="limit-scale"):
        recorded(tmp_path)
