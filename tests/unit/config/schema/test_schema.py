"""The sections that come in several kinds, and what the configuration says of itself."""

import dataclasses
from typing import Any, get_type_hints

import pytest

from dtk.config import schema
from dtk.config.compose import compose
from dtk.config.schema import KINDS, Config, CustomData, TextData


def test_every_kind_is_chosen_by_a_value_that_it_accepts() -> None:
    hints = get_type_hints(Config)
    for section, (tag, kinds) in KINDS.items():
        assert section in hints
        for value, kind in kinds.items():
            required = {
                field.name: f"some {field.name}"
                for field in dataclasses.fields(kind)
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            }
            result: Any = kind(**{**required, tag: value})
            assert getattr(result, tag) == value


def test_names_that_are_exported_exist() -> None:
    defined = {
        kind.__name__ for section, (_, kinds) in KINDS.items() if section != "strategy" for kind in kinds.values()
    }
    assert defined <= set(vars(schema))


def test_sections_are_frozen() -> None:
    config = compose([]).config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.steps = 3  # type: ignore[misc]


def test_the_batch_is_divided_over_the_data_parallel_ranks() -> None:
    config = compose(["strategy=fsdp", "parallel.tp=2", "train.global_batch_size=8", "train.micro_batch_size=1"]).config
    plan = config.batch_plan(4)
    assert (plan.dp_size, plan.accumulation_steps, plan.samples_per_rank) == (2, 4, 4)
    assert config.mesh(4).tp == 2


def test_speed_is_counted_in_what_a_sample_consists_of() -> None:
    assert TextData(path="x").unit == "token"
    assert CustomData(_target_="a.B").unit == "sample"
    assert CustomData(_target_="a.B", sequence_length=16).unit == "token"
