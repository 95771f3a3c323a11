"""Which file or override set each key, with the line in the file."""

from pathlib import Path

import pytest

from diagnostics.contract.origins import Choice, Origins, Setting
from dtk.config.compose import compose
from dtk.config.folders import conf_folder
from dtk.errors import DtkError


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Origins:
    """Of a configuration with an experiment, a file of the user's and typed values."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "model").mkdir()
    (folder / "model" / "small.yaml").write_text(
        "# @package model\nname: small\narchitecture: gpt\nlayers: 2\nheads: 2\nwidth: 8\n", encoding="utf-8"
    )
    typed = ["experiment=smoke", "model=small", "train.steps=7", "seed=3", "+seed=4"]
    return compose(typed, folder, traced=True).origins


def line_of(setting: Setting) -> str:
    """Return the line that a setting names."""
    name, _, number = setting.by.rpartition(":")
    path = conf_folder().parent / name
    return path.read_text(encoding="utf-8").splitlines()[int(number) - 1]


def test_the_last_override_counts_and_the_earlier_ones_are_kept(origins: Origins) -> None:
    typed = [setting.by for setting in origins.keys["seed"] if setting.kind == "typed"]
    assert typed == ["seed=3", "seed=4"] and origins.values["seed"] == 4
    assert origins.keys["seed"][0].kind == "file"


def test_a_file_is_named_with_the_line_and_the_value_that_stand_there(origins: Origins) -> None:
    for setting in origins.keys["train.steps"][:-1]:
        assert setting.kind == "file" and setting.by.startswith("conf/")
        assert line_of(setting).strip().startswith(f"steps: {setting.written}")
    assert origins.keys["train.steps"][-1] == Setting("typed", "train.steps=7")


def test_files_of_the_users_are_named_by_their_whole_path(origins: Origins) -> None:
    (setting,) = origins.keys["model.layers"]
    assert setting.by.endswith("/model/small.yaml:4") and Path(setting.by).is_absolute() and setting.written == "2"


def test_what_chose_an_option(origins: Origins) -> None:
    assert origins.choices["model"].kind == "typed" and origins.choices["model"].by == "model=small"
    assert origins.choices["schedule"] == Choice(
        origins.choices["schedule"].option,
        f"conf/schedule/{origins.choices['schedule'].option}.yaml",
        "file",
        "conf/config.yaml",
    )


def test_every_value_is_listed(origins: Origins) -> None:
    assert origins.values["train.steps"] == 7 and origins.values["model.width"] == 8
    assert "defaults" not in {key.split(".")[0] for key in origins.keys}


def test_without_tracing_nothing_is_known() -> None:
    assert compose(["experiment=smoke"]).origins == Origins()


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "broken.yaml").write_text("name: [1,\n", encoding="utf-8")
    with pytest.raises(DtkError, match="not valid YAML"):
        compose(["model=broken"], tmp_path, traced=True)
