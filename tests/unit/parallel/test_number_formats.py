"""The section `precision`: what each choice of conf/ computes and reduces in."""

import subprocess
import sys

import pytest

from dtk.config.compose import compose
from dtk.errors import DtkError
from dtk.parallel.number_formats import PrecisionConfig
from tests.patience import stretched


@pytest.mark.parametrize(
    ("name", "compute", "tf32", "scaled"),
    [
        ("fp32", "float32", False, False),
        ("tf32", "float32", True, False),
        ("bf16", "bfloat16", False, False),
        ("fp16", "float16", False, True),
    ],
)
def test_a_choice_computes_as_its_name_says(name: str, compute: str, tf32: bool, scaled: bool) -> None:
    precision = compose([f"precision={name}"]).config.precision
    assert isinstance(precision, PrecisionConfig) and precision.name == name
    assert (precision.compute_dtype, precision.tf32) == (compute, tf32)
    assert (precision.initial_loss_scale is not None) == scaled, "only float16 has too few exponents for gradients"


def test_gradients_are_reduced_in_float32_unless_it_is_asked_for() -> None:
    names = ("fp32", "tf32", "bf16", "fp16")
    assert {compose([f"precision={name}"]).config.precision.reduce_dtype for name in names} == {"float32"}
    assert compose(["precision=bf16", "precision.reduce_dtype=bfloat16"]).config.precision.reduce_dtype == "bfloat16"


@pytest.mark.parametrize(
    "override", ["precision=int8", "precision.compute_dtype=float64", "precision.reduce_dtype=fp8"]
)
def test_another_format_is_refused(override: str) -> None:
    with pytest.raises(DtkError, match="precision"):
        compose([override])


def test_it_is_read_without_torch() -> None:
    code = "import sys, dtk.parallel.number_formats; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=stretched(60))
