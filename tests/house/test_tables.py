"""YAML tables beside the code: a key that stands twice would silently replace the first."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def repeated(node: yaml.Node) -> Iterator[str]:
    """Yield `line: key` of each key that its mapping already has."""
    if isinstance(node, yaml.MappingNode):
        seen = Counter[str]()
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                seen[key.value] += 1
                if seen[key.value] > 1:
                    yield f"{key.start_mark.line + 1}: {key.value}"
            yield from repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from repeated(item)


@pytest.mark.parametrize("folder", ["diagnostics", "dtk", "conf"])
def test_no_key_stands_twice(folder: str) -> None:
    paths = [path for path in sorted(ROOT.joinpath(folder).rglob("*.yaml")) if "templates" not in path.parts]
    assert paths
    result = {}
    for path in paths:
        node = yaml.compose(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if node is not None and (keys := list(repeated(node))):
            result[str(path.relative_to(ROOT))] = keys
    assert result == {}


def test_a_repeated_key_is_found() -> None:
    node = yaml.compose("a: {b: 1, c: 2, b: 3}\nd: [{e: 1, e: 1}]\n", yaml.SafeLoader)
    assert node is not None and list(repeated(node)) == ["1: b", "2: e"]
