"""A target is found, or its absence proved, without running any code of the user's."""

import importlib
import sys
from pathlib import Path

import pytest

from dtk.config.instantiate import check_target, locate
from dtk.errors import DtkError

SOURCE = """
raise RuntimeError("imported")
import torch as heavy
from elsewhere import Borrowed
try:
    from fast import Fast
except ImportError:
    Fast = None
if heavy:
    class Branch: ...
class Model: ...
first, (second, *rest) = range(5)
annotated: int = 3
def outer():
    inner = 1
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the working directory and not on the import path, as for the console script."""
    folder = tmp_path / "located_package"
    (folder / "sub").mkdir(parents=True)
    (folder / "__init__.py").write_text(SOURCE)
    (folder / "models.py").write_text(SOURCE)
    (folder / "dynamic.py").write_text("globals()['Model'] = 1\n")
    (folder / "starred.py").write_text("from x import *\n")
    (folder / "broken.py").write_text("class Model(:\n")
    (folder / "sub" / "deep.py").write_text("class Model: ...\n")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("target", "module"),
    [
        ("located_package.Model", "located_package"),
        ("located_package.models.Model", "located_package.models"),
        ("located_package.models.Model.create", "located_package.models"),
        *(
            (f"located_package.models.{name}", "located_package.models")
            for name in ("Borrowed", "Fast", "Branch", "heavy")
        ),
        *((f"located_package.models.{name}", "located_package.models") for name in ("second", "rest", "annotated")),
        ("located_package.sub.deep.Model", "located_package.sub.deep"),
        ("located_package.dynamic.Anything", "located_package.dynamic"),
        ("located_package.starred.Anything", "located_package.starred"),
        ("located_package.broken.Model", "located_package.broken"),
        ("json.JSONDecoder", "json"),
    ],
)
def test_where_a_target_is(target: str, module: str) -> None:
    assert locate(target) == module
    assert "located_package" not in sys.modules


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("not_there.Model", "_target_=not_there.Model cannot be imported: No module named 'not_there'"),
        ("located_package.modles.Model", '"modles" is not in located_package'),
        ("located_package.models.Modle", '"Modle" is not in located_package.models - did you mean Model?'),
    ],
)
def test_what_is_certainly_not_there(target: str, expected: str) -> None:
    with pytest.raises(DtkError) as caught:
        check_target(target, {}, ["located_package.*", "not_there.*"])
    assert expected in str(caught.value)
    assert "located_package" not in sys.modules


def test_what_is_imported_already_is_checked_to_the_end() -> None:
    importlib.import_module("dtk.config.strict")
    with pytest.raises(DtkError) as caught:
        check_target("dtk.config.strict.DtkError", {"what": "x"}, ["dtk.config.*"])
    assert str(caught.value).endswith("use its own import path: _target_=dtk.errors.DtkError 'allow_targets=[dtk.*]'")
    check_target("dtk.errors.DtkError", {"what": "x"}, ["dtk.*"])
    check_target("dtk.config.strict.DtkError", {"what": "x"}, ["dtk.config.strict.DtkError"])
    with pytest.raises(DtkError, match='has no argument "whta"'):
        check_target("dtk.errors.DtkError", {"whta": "x"}, ["dtk.*"])
    with pytest.raises(DtkError, match="is not a class"):
        check_target("os.system", {"command": "true"}, ["os.system"])
