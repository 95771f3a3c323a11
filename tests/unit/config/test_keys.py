"""What the schema says of each key: name, kind, type, default and text."""

import inspect
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

from diagnostics.contract.files import read_table
from dtk.config.keys import Key, keys
from dtk.config.schema import KINDS, CallbackConfig, Config

ALL = list(keys())


def key(name: str, kind: str = "") -> Key:
    (match,) = (key for key in ALL if key.name == name and kind in key.kind.split("=")[-1].split("|"))
    return match


def test_a_key_of_a_plain_section_exists_always() -> None:
    batch = key("train.micro_batch_size")
    assert (batch.kind, batch.type, batch.default) == ("", "int", "0")
    assert batch.about.endswith((".", "it.", "ranks.")) or batch.about


def test_a_key_of_some_kinds_names_them() -> None:
    cap = key("strategy.bucket_cap_mb", "ddp")
    assert cap.kind.startswith("strategy=") and "ddp" in cap.kind and "fsdp" not in cap.kind.split("=")[1].split("|")
    assert cap.default == "25.0"


def test_texts_of_a_base_class_hold_for_its_kinds() -> None:
    about = {key.about for key in ALL if key.name == "strategy.reshard_after_forward"}
    assert about and "" not in about


def test_every_key_says_what_it_is_unless_it_only_repeats_a_choice() -> None:
    # Of `model=gpt2` and the like, `model.name` is the choice itself.
    tags = {f"{section}.{tag}" for section, (tag, _) in KINDS.items()} | {"model.name", "precision.name"}
    assert not {key.name for key in ALL if not key.about} - tags - {f"{section}.name" for section in KINDS}


def test_null_stands_for_none_and_lists_are_written_as_yaml() -> None:
    assert key("precision.initial_loss_scale").type == "float or null"
    assert key("precision.initial_loss_scale").default == "null"
    assert key("optimizer.betas", "adamw").default == "[0.9, 0.95]"


def test_a_key_without_a_default_must_be_given() -> None:
    assert key("optimizer._target_", "custom").default == ""


def test_no_kind_of_a_section_has_a_key_twice() -> None:
    counted = Counter((key.name, value) for key in ALL for value in key.kind.split("=")[-1].split("|"))
    assert [pair for pair, times in counted.items() if times > 1] == []


def test_every_section_with_kinds_has_keys_of_each() -> None:
    for section, (tag, kinds) in KINDS.items():
        listed = {
            value for key in ALL if key.name == f"{section}.{tag}" for value in key.kind.partition("=")[2].split("|")
        }
        assert listed == set(kinds), section


def test_every_text_belongs_to_a_key_that_is_there() -> None:
    kinds = {cls for _, classes in KINDS.values() for cls in classes.values()}
    sections = {Config, CallbackConfig, *kinds, *(cls for cls in get_type_hints(Config).values() if is_dataclass(cls))}
    every = {cls for section in sections for cls in section.__mro__ if is_dataclass(cls)}
    by_name = {cls.__name__: {field.name for field in fields(cls)} for cls in every}
    tables = {path for cls in every if (path := Path(inspect.getfile(cls)).with_suffix(".yaml")).is_file()}
    texts = {name: text for path in tables for name, text in read_table(path).get("keys", {}).items()}
    assert sum(map(len, texts.values())) > 150
    for name, of_class in texts.items():
        assert of_class.keys() <= by_name[name], name
