"""Only names on the allow list are imported and called, and only with arguments that fit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtk.config.instantiate import instantiate
from dtk.errors import DtkError

PACKAGE = """
from fractions import Fraction
import subprocess

class Model:
    def __init__(self, width, depth=2, *, bias=True):
        self.sizes = (width, depth, bias)

def _hidden(): ...
constant = 3
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_package", raising=False)


def test_an_allowed_class_is_built() -> None:
    built = instantiate("their_package.Model", {"width": 3, "bias": False}, ["their_package.*"])
    assert built.sizes == (3, 2, False)
    assert instantiate("their_package.Model", {"width": 1}, ["their_package.Model"]).sizes == (1, 2, True)


def test_what_is_named_exactly_may_come_from_elsewhere() -> None:
    assert instantiate("their_package.Fraction", {"numerator": 3}, ["their_package.Fraction"]) == 3


@pytest.mark.parametrize(
    ("target", "allow", "expected"),
    [
        (
            "their_package.Model",
            [],
            "_target_=their_package.Model is not allowed: a configuration may only name what is on the allow list - "
            "allow it: 'allow_targets=[their_package.*]'",
        ),
        (
            "their_package.Fraction",
            ["their_package.*"],
            "_target_=their_package.Fraction is not allowed: it is defined as fractions.Fraction, and only imported "
            "there - use its own import path: _target_=fractions.Fraction 'allow_targets=[fractions.*]'",
        ),
        (
            "their_package.subprocess.Popen",
            ["their_package.*"],
            "_target_=their_package.subprocess.Popen is not allowed: subprocess is only imported there",
        ),
        (
            "dtk.commands.main.main",
            [],
            "_target_=dtk.commands.main.main is not allowed: a configuration may only name what is on the allow list - "
            "allow it: 'allow_targets=[dtk.*]'",
        ),
        (
            "torch.nn.init.zeros_",
            [],
            "_target_=torch.nn.init.zeros_ is not a class: it is a function - name a class",
        ),
        (
            "dtk.models.build.importlib.import_module",
            [],
            '_target_=dtk.models.build.importlib.import_module: "importlib" is not in dtk.models.build',
        ),
        (
            "their_package._hidden",
            ["their_package.*"],
            "_target_=their_package._hidden is not allowed: names with a leading underscore are private",
        ),
        (
            "their_package.Model.__init__.__globals__",
            ["their_package.*"],
            "_target_=their_package.Model.__init__.__globals__ is not allowed: "
            "names with a leading underscore are private",
        ),
        (
            "their_package.Modle",
            ["their_package.*"],
            '_target_=their_package.Modle: "Modle" is not in their_package - did you mean Model?',
        ),
        (
            "their_package.constant",
            ["their_package.*"],
            "_target_=their_package.constant is not a class: it is a int - name a class",
        ),
        ("Model", ["Model"], '_target_="Model" is not an import path - write it as my_package.MyModel'),
        ("a b.c", ["a b.c"], '_target_="a b.c" is not an import path - write it as my_package.MyModel'),
        (
            "not_there.Model",
            ["not_there.*"],
            "_target_=not_there.Model cannot be imported: No module named 'not_there' - "
            "run from the folder of your package, or install it",
        ),
    ],
)
def test_what_is_refused(target: str, allow: list[str], expected: str) -> None:
    with pytest.raises(DtkError) as caught:
        instantiate(target, {"width": 1}, allow)
    assert str(caught.value) == expected


def test_a_target_off_the_list_is_not_even_imported() -> None:
    with pytest.raises(DtkError):
        instantiate("their_package.Model", {"width": 1}, ["their_package_2.*"])
    assert "their_package" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"widht": 1}, 'their_package.Model has no argument "widht" - did you mean width?'),
        ({"width": 1, "zzz": 1}, 'their_package.Model has no argument "zzz" - it takes width, depth, bias'),
        ({}, "their_package.Model needs width - set arguments.width=VALUE in its section"),
    ],
)
def test_arguments_are_checked_before_the_call(arguments: dict[str, int], expected: str) -> None:
    with pytest.raises(DtkError) as caught:
        instantiate("their_package.Model", arguments, ["their_package.*"])
    assert str(caught.value) == expected


def test_a_class_of_another_kind_is_not_called() -> None:
    with pytest.raises(DtkError) as caught:
        instantiate("their_package.Model", {"width": 1}, ["their_package.*"], dict)
    assert str(caught.value) == (
        "_target_=their_package.Model is not a builtins.dict: it does not derive from it - derive from builtins.dict"
    )


def test_the_working_directory_is_looked_into_as_in_a_rank(tmp_path: Path) -> None:
    """Also where Python leaves it out, as console scripts do (`-P` stands for these)."""
    (tmp_path / "mine_here.py").write_text("class Model:\n    answer = 7\n")
    code = "from dtk.config.instantiate import instantiate\n"
    code += "print(instantiate('mine_here.Model', {}, ['mine_here.*']).answer)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.stdout == "7\n", run.stderr
