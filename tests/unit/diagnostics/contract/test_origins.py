"""origins.json: who set each key, written at the launch and read back."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract.artifacts import SCHEMA_VERSION, NewerSchemaError
from diagnostics.contract.origins import (
    LONGEST,
    Choice,
    Origins,
    Setting,
    add_typed,
    at_key,
    at_launch,
    dumps,
    flat,
    loads,
)

FILE = Setting("file", "conf/train/base.yaml:3", "100")
KEYS = st.sampled_from(["a", "b_c", "d"])
SECTIONS = st.dictionaries(KEYS, st.integers() | st.dictionaries(KEYS, st.integers(), max_size=2), max_size=3)


def origins() -> Origins:
    choice = Choice("ddp", "conf/strategy/ddp.yaml", "typed", "strategy=ddp")
    keys = {"train.steps": [FILE], "train.seed": [Setting("default", "")], "train": [FILE]}
    return Origins(keys, {"strategy": choice}, {"train.steps": 100, "train.seed": 0, "train": {}})


def test_it_is_read_back_as_it_was_written() -> None:
    assert loads(dumps(origins()).encode()) == origins()


def test_a_key_is_a_line_for_people() -> None:
    lines = dumps(origins()).splitlines()
    set_by = '[{"kind": "file", "by": "conf/train/base.yaml:3", "written": "100"}]'
    assert f'  "train.steps": {{"value": 100, "set_by": {set_by}}},' in lines
    assert json.loads(dumps(origins()))["schema_version"] == SCHEMA_VERSION


@given(SECTIONS)
@settings(max_examples=60)
def test_every_leaf_of_a_configuration_has_one_dotted_key(tree: dict[str, object]) -> None:
    leaves = flat(tree)
    for key, value in leaves.items():
        node: object = tree
        for part in key.split("."):
            assert isinstance(node, dict)
            node = node[part]
        assert node == value and (not isinstance(value, dict) or not value)
    assert len(leaves) == sum(len(value) or 1 if isinstance(value, dict) else 1 for value in tree.values())


def test_a_dotted_key_leads_into_nested_mappings_and_no_further() -> None:
    plain = {"a": {"b": {"c": 1}, "d": None}}
    assert (at_key(plain, "a.b.c"), at_key(plain, "a.b"), at_key(plain, "a.d", 2)) == (1, {"c": 1}, None)
    assert (at_key(plain, "a.x", 2), at_key(plain, "a.b.c.e", 2), at_key("text", "a")) == (2, 2, None)


def test_an_override_of_a_section_counts_for_each_of_its_keys() -> None:
    given_ = origins()
    add_typed(given_, "train", "train=small")
    assert [setting.by for setting in given_.keys["train.steps"]] == [FILE.by, "train=small"]
    assert given_.keys["train.seed"][-1] == Setting("typed", "train=small")
    add_typed(given_, "train.steps", "~train.steps" + "x" * 500, removes=True)
    assert given_.keys["train.steps"][-1] == Setting("default", "")
    assert len(given_.keys["train.steps"][-2].by) == LONGEST


def test_values_that_changed_since_composing_are_marked_as_derived() -> None:
    launched = at_launch(origins(), {"train": {"steps": 100, "seed": 7}, "new": 1})
    assert launched.keys["train.steps"] == [FILE]
    assert launched.keys["train.seed"] == [Setting("default", ""), Setting("launch", "")]
    assert launched.keys["new"] == [Setting("default", ""), Setting("launch", "")]
    assert launched.values == {"train.steps": 100, "train.seed": 7, "new": 1}
    assert origins().keys["train.seed"] == [Setting("default", "")], "the origins as composed are left alone"


def test_a_secret_is_masked_where_it_is_written_and_where_it_was_typed() -> None:
    secret = Origins(
        {"tracker.api_key": [Setting("file", "conf/t.yaml:1", "0123456789abcdef")]},
        {},
        {"tracker.api_key": "0123456789abcdef"},
    )
    text = dumps(secret)
    assert "0123456789abcdef" not in text and text.count("***") == 2


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b'{"schema_version": 1}',
        b'{"schema_version": 1, "choices": {"a": {}}, "keys": {}}',
        b'{"schema_version": 1, "choices": {}, "keys": {"a": {"value": 1, "set_by": []}}}',
        b'{"schema_version": 1, "choices": {}, "keys": {"a": {"value": 1, "set_by": [{"kind": "magic"}]}}}',
        b'{"schema_version": 1, "choices": {}, "keys": {"a": {"value": 1, "set_by": [3]}}}',
        b"{",
    ],
)
def test_what_dtk_did_not_write_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        loads(content)


def test_a_newer_schema_is_named_as_such() -> None:
    with pytest.raises(NewerSchemaError, match="newer dtk"):
        loads(json.dumps({"schema_version": SCHEMA_VERSION + 1, "choices": {}, "keys": {}}).encode())
