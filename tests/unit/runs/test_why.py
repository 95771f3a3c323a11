"""Who set a key, as the run recorded it: for people and as JSON."""

import json
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.origins import Choice, Origins, Setting, dumps
from dtk.errors import DtkError
from dtk.runs.why import why


@pytest.fixture
def run(tmp_path: Path) -> Path:
    origins = Origins(
        keys={
            "train.steps": [
                Setting("file", "conf/config.yaml:9", "15"),
                Setting("file", "conf/experiment/smoke.yaml:7", "5"),
                Setting("typed", "train.steps=3"),
            ],
            "train.micro_batch_size": [Setting("default", ""), Setting("launch", "")],
            "strategy.name": [Setting("file", "conf/strategy/ddp.yaml:2", "ddp")],
            "model.note": [Setting("run", "20260101-a")],
        },
        choices={
            "strategy": Choice("ddp", "conf/strategy/ddp.yaml", "typed", "strategy=ddp"),
            "experiment": Choice("smoke", "conf/experiment/smoke.yaml", "file", "conf/config.yaml"),
        },
        values={"train.steps": 3, "train.micro_batch_size": 2, "strategy.name": "ddp", "model.note": "x" * 80},
    )
    RunPaths(tmp_path).origins.write_text(dumps(origins), encoding="utf-8")
    return tmp_path


def test_the_setting_that_counts_and_those_that_it_overrules(run: Path) -> None:
    assert why(run, "train.steps", as_json=False).splitlines() == [
        "train.steps = 3",
        "set by  train.steps=3 on the command line",
        "over    conf/experiment/smoke.yaml:7 (chosen by conf/config.yaml), which had 5",
        "over    conf/config.yaml:9, which had 15",
    ]


def test_what_dtk_derived_and_what_is_its_default(run: Path) -> None:
    assert why(run, "train.micro_batch_size", as_json=False).splitlines() == [
        "train.micro_batch_size = 2",
        "set by  dtk at the launch, from ranks and devices",
        "over    the default of dtk",
    ]


def test_a_section_is_a_table_with_its_choice(run: Path) -> None:
    lines = why(run, "strategy", as_json=False).splitlines()
    assert lines[0] == "strategy=ddp: conf/strategy/ddp.yaml, chosen by strategy=ddp on the command line"
    assert lines[1:] == ["key            value  set by", "strategy.name  ddp    conf/strategy/ddp.yaml:2"]
    assert [line.split()[0] for line in why(run, "train", as_json=False).splitlines()[1:]] == [
        "train.steps",
        "train.micro_batch_size",
    ]


def test_a_long_value_is_shortened_in_a_table_only(run: Path) -> None:
    assert f"{'x' * 57}...  the configuration of 20260101-a" in why(run, "model", as_json=False)
    assert "x" * 80 in why(run, "model.note", as_json=False)


def test_the_same_as_json(run: Path) -> None:
    answer = json.loads(why(run, "strategy", as_json=True))
    assert answer["keys"]["strategy.name"]["value"] == "ddp" and answer["choice"]["by"] == "strategy=ddp"
    assert answer["keys"]["strategy.name"]["set_by"][-1]["kind"] == "file"
    assert json.loads(why(run, "train.steps", as_json=True))["choice"] is None


@pytest.mark.parametrize(
    ("key", "fix"),
    [("train.step", "did you mean train.steps?"), ("trian", "did you mean train?"), ("zzz", "--why train")],
)
def test_a_key_that_is_not_there(key: str, fix: str, run: Path) -> None:
    with pytest.raises(DtkError, match=f'has no key "{key}"') as caught:
        why(run, key, as_json=False)
    assert caught.value.fix.endswith(fix)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no record of what set its keys: dtk run keeps one"),
        ('{"schema_version": 99}', "was written by a newer dtk"),
        ("{", "origins.json is damaged"),
        ('{"schema_version": 1, "choices": {}, "keys": {"a": {"value": 1, "set_by": []}}}', "origins.json is damaged"),
    ],
)
def test_a_run_without_a_record_is_one_line(text: str | None, message: str, run: Path) -> None:
    path = RunPaths(run).origins
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(DtkError) as caught:
        why(run, "train.steps", as_json=False)
    assert message in str(caught.value) and "\n" not in str(caught.value)
