"""Whether the part of dtk that trains is installed, and whether torch can be imported."""

import sys
from pathlib import Path

import pytest

from dtk import extras
from dtk.errors import DtkError
from dtk.extras import install, installed, load, require_training


def test_what_is_installed_here_is_enough() -> None:
    require_training("dtk plan needs")


def test_the_version_of_a_package_is_told_without_importing_it() -> None:
    assert (installed("msgspec") or "").count(".") >= 1
    assert installed("no-such-distribution-anywhere") is None


def test_what_is_missing_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "NEEDED", (*extras.NEEDED, "no_such_module_anywhere"))
    with pytest.raises(DtkError) as caught:
        require_training("dtk plan needs")
    assert str(caught.value) == f"dtk plan needs the training extra - {install('train')}"
    assert "[train]" in install("train")


@pytest.mark.parametrize("package", ["torch", "deepspeed"])
def test_a_broken_package_is_one_line(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{package}.py").write_text("raise OSError('libcudart.so: not found\\n  at all')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    with pytest.raises(DtkError) as caught:
        load(package)
    assert str(caught.value).startswith(f"{package} cannot be imported: OSError: libcudart.so: not found at all - ")
    assert caught.value.fix.endswith("doctor --only versions looks closer")
