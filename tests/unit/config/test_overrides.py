"""What is typed on the command line, before Hydra composes it: choices, values, sweeps, and what is refused."""

from pathlib import Path

import pytest

from dtk.config.overrides import LARGEST_SWEEP, expand_sweep, normalise, parse
from dtk.errors import DtkError

GROUPS = {
    "strategy": {name: Path(f"strategy/{name}.yaml") for name in ("ddp", "fsdp", "zero1", "zero2")},
    "experiment": {"smoke": Path("experiment/smoke.yaml")},
    "mine": {"a": Path("mine/a.yaml")},
}
DEFAULTS = ["strategy"]


def test_choices_come_first_and_every_other_key_is_forced() -> None:
    typed = ["train.steps=3", "strategy=ddp", "+seed=1", "mine=a"]
    assert normalise(typed, GROUPS, DEFAULTS) == ["strategy=ddp", "+mine=a", "++train.steps=3", "++seed=1"]


def test_the_last_choice_of_a_group_counts() -> None:
    assert normalise(["strategy=ddp", "strategy=fsdp"], GROUPS, DEFAULTS) == ["strategy=fsdp"]


def test_an_experiment_may_be_taken_back() -> None:
    assert normalise(["experiment=null"], GROUPS, [*DEFAULTS, "experiment"]) == ["~experiment"]


def test_keys_may_be_removed() -> None:
    assert normalise(["~train.clip_norm"], GROUPS, DEFAULTS) == ["~train.clip_norm"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("strategy=fsd", 'unknown strategy "fsd" - did you mean strategy=fsdp? options: ddp, fsdp, zero1, zero2'),
        ("strategy='../x'", 'unknown strategy "../x" - options: ddp, fsdp, zero1, zero2'),
        ("strategy=3", 'unknown strategy "3" - options: ddp, fsdp, zero1, zero2'),
        ("~strategy", "strategy cannot be removed - choose one of its options: ddp, fsdp, zero1, zero2"),
        ("strategy.name=ddp", "strategy.name is fixed by the choice of strategy - use strategy=OPTION: ddp,"),
        (
            "strategy=ddp,fsdp",
            "strategy=ddp,fsdp asks for several runs - add -m, or quote a value with a comma:",
        ),
        ("hardware=h100", "hardware is not part of an experiment: it says what to plan for - use dtk plan hardware="),
        ("hardware.name=x", "hardware.name is not part of an experiment"),
        ("sweep=mine", "sweep is not part of an experiment: it belongs to a sweep - use dtk sweep NAME"),
        ("repeats=3", "repeats is not part of an experiment: it belongs to a sweep - use dtk run -m, or dtk"),
        ("hydra.run.dir=x", "hydra.run.dir has no effect: dtk uses Hydra only to compose - run folders:"),
        ("hydra/launcher=joblib", "hydra/launcher has no effect: dtk runs sweeps itself"),
        ("hydra.sweeper.max_batch_size=2", "hydra.sweeper.max_batch_size has no effect: dtk runs sweeps itself"),
        ("train.steps", '"train.steps" is not an override: it has no = - write KEY=VALUE'),
        ("=3", '"=3" is not an override: it has no key'),
        ("a=[1", "cannot read a=[1: "),
    ],
)
def test_what_cannot_be_meant_is_one_line(typed: str, message: str) -> None:
    with pytest.raises(DtkError) as caught:
        normalise([typed], GROUPS, DEFAULTS)
    assert str(caught.value).startswith(message)


def test_a_value_with_special_characters_is_shown_quoted() -> None:
    with pytest.raises(DtkError) as caught:
        parse('note=a "b" {')
    assert """'note="a \\"b\\" {"'""" in caught.value.fix


def test_the_last_list_varies_fastest() -> None:
    points = expand_sweep(["strategy=ddp,fsdp", "seed=1", "train.steps=range(1,3)"], GROUPS)
    assert points == [
        ["strategy=ddp", "seed=1", "train.steps=1"],
        ["strategy=ddp", "seed=1", "train.steps=2"],
        ["strategy=fsdp", "seed=1", "train.steps=1"],
        ["strategy=fsdp", "seed=1", "train.steps=2"],
    ]


def test_a_pattern_stands_for_the_options_that_match() -> None:
    points = expand_sweep(["strategy=glob(zero*)"], GROUPS)
    assert points == [["strategy=zero1"], ["strategy=zero2"]]


def test_without_a_list_there_is_one_point() -> None:
    assert expand_sweep(["seed=1"], GROUPS) == [["seed=1"]]
    assert expand_sweep([], GROUPS) == [[]]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["strategy=glob(x*)"], "matches nothing - options: ddp"),
        (["train.steps=glob(x*)"], "train.steps has no options: glob() matches the files of a group"),
        (["optimizer.lr=interval(0,1)"], "has infinitely many values - list them, or use range"),
        ([f"seed=range(0,{LARGEST_SWEEP + 1})"], f"more than {LARGEST_SWEEP} points"),
        (["seed=range(0,200)", "train.steps=range(0,200)"], f"more than {LARGEST_SWEEP} points"),
        (["seed=range(3,3)"], "has no value"),
        (["hydra.sweep.dir=x"], "use -m with lists, typed or as hydra.sweeper.params of a file"),
    ],
)
def test_sweeps_that_cannot_be_run_are_one_line(typed: list[str], message: str) -> None:
    with pytest.raises(DtkError) as caught:
        expand_sweep(typed, GROUPS)
    assert message in str(caught.value)
