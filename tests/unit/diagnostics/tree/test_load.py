"""Trees are read strictly, and the built-in ones hold every cause exactly once."""

from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from diagnostics.causes.registry import collect
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.tree.load import built_in, load
from diagnostics.tree.model import leaves

CATALOGUE = {
    "hang": "collective_mismatch signature_mismatch conditional_collective uneven_iterations unused_parameters "
    "rank_raised rank_oom rank_killed rank_exited host_stall device_stall straggler group_order p2p_cycle "
    "network rendezvous",
    "memory": "full_gather no_reshard replicated_gather full_state_dict model_states activations fragmentation leak "
    "non_torch",
    "overlap": "accumulation_sync single_bucket small_buckets unbucketed same_stream blocking_wait "
    "root_only_wrapping no_prefetch small_units find_unused communication_bound skew host_bound "
    "sync_point data_bound instrumented",
    "env": "unknown_variable deprecated_variable contradiction wrong_interface ib_disabled",
    "numeric": "non_finite rank_divergence",
}
"""The ids that never change; further ones may join."""

TREE = """
id: mine
title: Mine
gate: or
outcome: slow
children:
  - cause: a.one
    title: one
  - id: mine.both
    title: both
    gate: and
    children:
      - cause: a.two
        title: two
        outcome: at_risk
      - cause: b.three
        title: three
explains:
  - cause: a.*
    explains: [b.three]
    when: [ranks, group]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "tree.yaml"
    path.write_text(text)
    return path


def test_every_cause_of_the_catalogue_is_in_exactly_one_place() -> None:
    counts = Counter(leaf.cause for tree in built_in() for leaf in leaves(tree.top))
    assert set(counts.values()) == {1}
    assert {f"{family}.{name}" for family, names in CATALOGUE.items() for name in names.split()} <= set(counts)


def test_every_cause_of_a_built_in_detector_is_in_a_tree() -> None:
    named = {leaf.cause for tree in built_in() for leaf in leaves(tree.top)}
    built = [item for item in collect().detectors if type(item).__module__.startswith("diagnostics.")]
    assert {cause for detector in built for cause in detector.causes} <= named


def test_rules_of_the_built_in_trees_name_causes_that_exist() -> None:
    named = {leaf.cause for tree in built_in() for leaf in leaves(tree.top)}
    for tree in built_in():
        for rule in tree.rules:
            for pattern in rule.causes + rule.explains:
                assert any(fnmatchcase(cause, pattern) for cause in named), (tree.file, pattern)


def test_a_tree_of_ones_own(tmp_path: Path) -> None:
    tree = load(write(tmp_path, TREE), decided=["a.one", "a.two", "b.three"])
    assert [(leaf.cause, leaf.outcome) for leaf in leaves(tree.top)] == [
        ("a.one", "slow"),
        ("a.two", "at_risk"),
        ("b.three", "slow"),
    ]
    assert tree.rules[0].matches("a.two", "b.three") and not tree.rules[0].matches("b.three", "a.two")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("gate: or", "gate: xor", "Invalid enum value 'xor' - at `$.gate`"),
        ("outcome: slow", "outcome: slwo", "Invalid enum value 'slwo' - at `$.outcome`"),
        ("title: Mine", "titel: Mine", "unknown field `titel`"),
        ("gate: or\n", "", "missing required field `gate`"),
        ("cause: a.two", "cause: a.twoo", "cause 'a.twoo' is decided by no detector; did you mean a.two?"),
        ("cause: a.two", "cause: a.one", "'a.one' stands twice"),
        ("cause: a.two", "cause: A Two", "matching regex"),
        ("explains: [b.three]", "explains: [b.tree]", "cause 'b.tree' is decided by no detector; did you mean"),
        ("when: [ranks, group]", "when: [rank]", "Invalid enum value 'rank'"),
        ("id: mine.both", "id: mine.both\n    id: again", 'line 10: not valid YAML (the key "id" is there twice)'),
        ("children:\n  - cause", "children: 5\nx:\n  - cause", "Expected `array`, got `int` - at `$.children`"),
        ("title: one", "title: [1]", "Expected `str`, got `array` - at `$.children[0].title`"),
        ("id: mine\n", "id: [a]\n", "Expected `str`, got `array` - at `$.id`"),
        ("    gate: and\n", "", "a node has a cause, or the keys id, gate and children"),
        ("title: one", "title: one\n    gate: or", "a node has a cause, or the keys id, gate and children"),
        ("title: one", "title: ' '", "matching regex"),
        ("id: mine\n", "id: &a [*a]\n", "refused: it refers to itself"),
        ("title: Mine", "title: !!python/object/apply:os.system ['true']", "not valid YAML (could not determine"),
        ("title: Mine", "title: [", "not valid YAML"),
        (TREE, "- 1", "Expected `object`, got `array`"),
    ],
)
def test_a_wrong_tree_is_one_line(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in TREE
    with pytest.raises(DiagnosticsError) as caught:
        load(write(tmp_path, TREE.replace(old, new, 1)), decided=["a.one", "a.two", "b.three"])
    assert text in str(caught.value) and str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tree_that_refers_to_itself_ends(tmp_path: Path) -> None:
    text = "id: a\ntitle: t\ngate: or\noutcome: slow\nchildren: &c\n  - {id: b, title: t, gate: or, children: *c}\n"
    with pytest.raises(DiagnosticsError, match="refers to itself"):
        load(write(tmp_path, text))


def test_a_tree_with_too_many_cut_sets_is_refused_at_once(tmp_path: Path) -> None:
    gates = "".join(
        f"  - id: g{n}\n    title: t\n    gate: or\n    children:\n"
        + "".join(f"      - cause: c{n}.x{m}\n        title: t\n" for m in range(8))
        for n in range(12)
    )
    with pytest.raises(DiagnosticsError, match="minimal cut sets"):
        load(write(tmp_path, f"id: a\ntitle: t\ngate: and\noutcome: slow\nchildren:\n{gates}"))


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticsError, match="No such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(DiagnosticsError, match="not a regular file"):
        load(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    with pytest.raises(DiagnosticsError):
        load(tmp_path / "binary.yaml")
