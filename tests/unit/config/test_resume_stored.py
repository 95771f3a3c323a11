"""The configuration that a run folder holds, and the same with changes."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.origins import Setting, at_launch, dumps
from dtk.config.compose import Composed, compose
from dtk.config.resume import change, read_stored
from dtk.errors import DtkError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """Describe a run of `dtk run strategy=ddp train.steps=7`."""
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    composed = compose(["strategy=ddp", "train.steps=7"], traced=True)
    paths.config.write_text(yaml.safe_dump(composed.plain), encoding="utf-8")
    paths.overrides.write_text(yaml.safe_dump([*composed.overrides, "resume=/x"]), encoding="utf-8")
    paths.origins.write_text(dumps(at_launch(composed.origins, composed.plain)), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def stored(folder: RunPaths) -> Composed:
    return read_stored(folder, "--rerun x")


def test_what_was_stored_comes_back(stored: Composed) -> None:
    assert stored.plain["train"]["steps"] == 7 and stored.plain["strategy"]["name"] == "ddp"
    assert stored.overrides == ["strategy=ddp", "train.steps=7"], "resume= is of that launch alone"
    assert stored.origins.keys["train.steps"][-1] == Setting("typed", "train.steps=7")


def test_without_a_record_of_origins_the_run_itself_is_named(folder: RunPaths, tmp_path: Path) -> None:
    for path in (folder.config, folder.overrides):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    stored = read_stored(RunPaths(tmp_path), "--rerun x")
    assert stored.origins.keys["train.steps"] == [Setting("run", tmp_path.name)]
    assert stored.origins.values["train.steps"] == 7


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "is not a run folder of dtk: config.yaml: No such file or directory"),
        ({"global_step5": ""}, "is not a run folder of dtk: DeepSpeed wrote it, and its files are pickles"),
        ({"config.yaml": "a: [", "overrides.yaml": "[]"}, "is not a run folder of dtk: "),
        ({"config.yaml": "[]", "overrides.yaml": "[]"}, "config.yaml or overrides.yaml is not what dtk wrote"),
        ({"config.yaml": "{}", "overrides.yaml": "[3]"}, "config.yaml or overrides.yaml is not what dtk wrote"),
        ({"config.yaml": "{modle: {}}", "overrides.yaml": "[]"}, 'unknown key "modle"'),
        (
            {"config.yaml": "!!python/object/apply:os.system ['touch /tmp/x']", "overrides.yaml": "[]"},
            "is not a run folder of dtk: ",
        ),
    ],
)
def test_a_folder_that_holds_no_configuration_is_one_line(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DtkError) as caught:
        read_stored(RunPaths(tmp_path), "--rerun x")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(DtkError, match="there is no such run folder"):
        read_stored(RunPaths(tmp_path / "none"), "--rerun x")


def test_a_key_changes_only_itself(stored: Composed) -> None:
    changed = change(stored, ["train.log_every=3"], None)
    expected = {**stored.plain, "train": {**stored.plain["train"], "log_every": 3}}
    assert changed.plain == expected
    assert changed.overrides == ["strategy=ddp", "train.steps=7", "train.log_every=3"]
    assert changed.origins.keys["train.log_every"][-1] == Setting("typed", "train.log_every=3")
    assert stored.plain["train"]["log_every"] != 3, "what was stored stays as it was"


def test_a_choice_replaces_its_section_and_the_typed_choice_before(stored: Composed) -> None:
    changed = change(stored, ["strategy=fsdp"], None)
    assert changed.config.strategy.name == "fsdp" and changed.config.train.steps == 7
    assert changed.overrides == ["train.steps=7", "strategy=fsdp"]
    assert changed.origins.choices["strategy"].by == "strategy=fsdp"
    assert changed.origins.keys["train.steps"] == stored.origins.keys["train.steps"], "other sections stay"
    sources = {setting.by.split(":")[0] for setting in changed.origins.keys["strategy.reshard_after_forward"]}
    assert "conf/strategy/fsdp.yaml" in sources
    assert not any(key.startswith("strategy.bucket") for key in changed.origins.keys), "keys of ddp are gone"


def test_a_relative_path_is_against_this_working_directory(
    stored: Composed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert change(stored, ["runs_folder=mine"], None).plain["runs_folder"] == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("experiment=smoke", "experiment cannot be given for a stored run"),
        ("~train.clip_norm", "~train.clip_norm cannot be applied to a stored run - write KEY=VALUE"),
        ("strategy=ddp,fsdp", "strategy=ddp,fsdp"),
        ("seed.x=1", "seed.x is not a key: seed is a value, not a section"),
        ("train.stepz=1", 'unknown key "train.stepz" - did you mean train.steps?'),
        ("train.steps=a", "train.steps=a is text, not a whole number"),
    ],
)
def test_what_cannot_be_changed_is_one_line(stored: Composed, typed: str, message: str) -> None:
    with pytest.raises(DtkError) as caught:
        change(dataclasses.replace(stored), [typed], None)
    assert str(caught.value).startswith(message)
