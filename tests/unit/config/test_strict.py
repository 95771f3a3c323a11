"""The strict check: types by the letter, unknown keys anywhere, one line each."""

from copy import deepcopy
from typing import Any

import pytest

from dtk.config.compose import compose
from dtk.config.schema import KINDS
from dtk.config.strict import from_plain, to_plain
from dtk.errors import DtkError

STRATEGIES = "single, dp, ddp, zero1, zero2, zero3, fsdp, hsdp, deepspeed_zero1, deepspeed_zero2, deepspeed_zero3"


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return compose([]).plain


def put(plain: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = deepcopy(plain)
    section: Any = changed
    *parents, last = path.split(".")
    for key in parents:
        section = section[key]
    section[last] = value
    return changed


def test_plain_and_typed_are_the_same_thing(plain: dict[str, Any]) -> None:
    config = from_plain(plain)
    assert to_plain(config) == plain
    assert from_plain(to_plain(config)) == config


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("train.steps", "10", "train.steps=10 is text, not a whole number"),
        ("train.steps", True, "train.steps=true is a yes or no, not a whole number"),
        ("train.steps", 1.0, "train.steps=1.0 is not a whole number"),
        ("train.steps", None, "train.steps=null is nothing, not a whole number"),
        ("train.compile", 1, "train.compile=1 is a number, not true or false"),
        ("train.clip_norm", "1", "train.clip_norm=1 is text, not a number or null"),
        ("train.clip_norm", float("nan"), "train.clip_norm=NaN is not a number or null"),
        ("optimizer.lr", True, "optimizer.lr=true is a yes or no, not a number"),
        ("optimizer.betas", 0.9, "optimizer.betas=0.9 is not a list of a number"),
        ("optimizer.betas", [0.9, "x"], "optimizer.betas[1]=x is text, not a number"),
        ("optimizer.fused", "maybe", "optimizer.fused=maybe is not true or false or auto"),
        ("optimizer.fused", 1, "optimizer.fused=1 is not true or false or auto"),
        ("record.level", "ful", "record.level=ful is not off, light or full - did you mean record.level=full?"),
        ("record.level", False, "record.level=false is not off, light or full"),
        (
            "nccl.variables",
            {"NCCL_IB_DISABLE": 1},
            "nccl.variables.NCCL_IB_DISABLE=1 is a number, not text - "
            """quote it: 'nccl.variables.NCCL_IB_DISABLE="1"'""",
        ),
        ("nccl.variables", {1: "x"}, "nccl.variables has the key 1, which is not text - quote it"),
        ("resume", "none", "resume=none is text - use null: resume=null"),
        ("train", 5, "train=5 is not a section with keys - set a key: train.steps=VALUE"),
        ("train", None, "train=null is not a section with keys - set a key: train.steps=VALUE"),
        (
            "strategy",
            "ddp",
            f"strategy=ddp is not a section with keys - name is one of {STRATEGIES}",
        ),
        ("strategy", {}, f"strategy.name is required - it is one of {STRATEGIES}"),
        (
            "strategy.name",
            ["ddp"],
            f'unknown strategy.name=["ddp"] - did you mean ddp? options: {STRATEGIES}',
        ),
        ("train.x", 1, 'unknown key "train.x" - --cfg prints every key'),
        ("strategy.wrap", [], 'unknown key "strategy.wrap" - did you mean model.wrap?'),
        ("model.name", "???", "model.name is required: model=??? model.name=VALUE"),
    ],
)
def test_wrong_values_are_one_line(plain: dict[str, Any], path: str, value: Any, expected: str) -> None:
    with pytest.raises(DtkError) as caught:
        from_plain(put(plain, path, value))
    assert str(caught.value) == expected


def test_integers_are_taken_for_floats_and_become_floats(plain: dict[str, Any]) -> None:
    config = from_plain(put(put(plain, "train.clip_norm", 2), "optimizer.betas", [0, 0.5]))
    assert type(config.train.clip_norm) is float and config.optimizer.betas == [0.0, 0.5]
    assert type(from_plain(put(plain, "launcher.nproc", 3)).launcher.nproc) is int


def test_every_kind_is_built_from_its_own_keys_only(plain: dict[str, Any]) -> None:
    for section, (tag, kinds) in KINDS.items():
        for name, cls in kinds.items():
            values = {tag: name, "name": plain[section].get("name") if tag != "name" else name}
            values |= {"path": "x"} if "path" in cls.__dataclass_fields__ else {}  # type: ignore[attr-defined]
            values |= {"_target_": "a.B"} if name == "custom" else {}
            values |= {"image": "x"} if name == "kubernetes" else {}
            assert type(getattr(from_plain(put(plain, section, values)), section)) is cls


def test_a_long_value_is_shortened(plain: dict[str, Any]) -> None:
    with pytest.raises(DtkError) as caught:
        from_plain(put(plain, "train.steps", "x\n" * 500))
    assert len(str(caught.value)) < 120 and "\n" not in str(caught.value)
