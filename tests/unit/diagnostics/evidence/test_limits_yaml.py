"""YAML of somebody else is plain values of a bounded size, or one line of refusal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from diagnostics.evidence.limits import MOST_NODES, Limits, checked_text, load_yaml
from tests.patience import stretched

ROOT = Path(__file__).resolve().parents[4]
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20))
BOMBS = {
    "aliases of aliases": LAUGHS,
    "merge keys": "a0: &a0 {k: v}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 20)),
    "a list in itself": "a: &a [*a]",
    "a name used twice": "b: &a 1\nc: &a [*a]",
    "depth": "[" * 200_000,
    "closed depth": "[" * 200_000 + "]" * 200_000,
    "mappings": "{a: " * 100_000,
    "many nodes": "[" + "1," * (MOST_NODES + 1) + "1]",
    "sexagesimal": "1" + ":59" * 200_000,
    "digits": "9" * 1_000_000,
    "hexadecimal": "0x" + "f" * 1_000_000,
    "object": "!!python/object/apply:os.system [id]",
    "unhashable key": "{[1]: 2}",
    "month 13": "2020-13-01",
    "bytes": "\x00\xff",
    "two documents": "a: 1\n---\nb: 2",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_within_a_second_and_little_memory(name: str, tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_bytes(BOMBS[name].encode("latin-1"))
    script = (
        "import resource, sys; from pathlib import Path; from diagnostics.evidence.limits import Limits\n"
        "from diagnostics.evidence.limits import load_yaml\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (10, 10))\n"
        "try: load_yaml(Path(sys.argv[1]).read_bytes(), Limits()); print('loaded')\n"
        "except ValueError as error: print('refused:', str(error)[:80].splitlines()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "bomb.yaml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=stretched(60),
    )
    assert done.returncode == 0 and done.stdout.startswith("refused:"), (
        done.returncode,
        done.stdout,
        done.stderr[-500:],
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_what_dtk_writes_is_read(value: object) -> None:
    assert load_yaml(yaml.safe_dump(value).encode(), Limits()) == value


def test_an_alias_that_is_no_bomb_is_read() -> None:
    shared = [1, 2]
    assert load_yaml(yaml.safe_dump({"a": shared, "b": shared}).encode(), Limits()) == {"a": shared, "b": shared}


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: 1\nb: 2\na: 3", 3), ("x:\n  - {k: 1, k: 2}", 2), ("a: {b: 1}\nb: [a, b]\n'a': 2", 3),
     ("k: &x 1\nb: *x\nk: *x", 3)],
)  # fmt: skip
def test_a_key_that_is_there_twice_is_named_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=rf"line {line}: not valid YAML \(the key .* is there twice\)"):
        load_yaml(text.encode(), Limits())


def test_equal_values_and_merges_are_no_keys_twice() -> None:
    text = "a: &x {k: a}\nb: a\nc: [a, a, {a: a}]\nd: {<<: *x, k: 1}\n? [a]\n: a\n"
    with pytest.raises(ValueError, match="unhashable"):
        load_yaml(text.encode(), Limits())
    assert load_yaml(text.partition("?")[0].encode(), Limits())["d"] == {"k": 1}


def test_several_documents() -> None:
    assert load_yaml(b"a: 1\n---\na: 2\n", Limits(), several=True) == [{"a": 1}, {"a": 2}]


def test_the_text_for_another_loader_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: é\n", encoding="utf-8")
    assert checked_text(tmp_path / "a.yaml") == "a: é\n"
    (tmp_path / "a.yaml").write_text(LAUGHS)
    with pytest.raises(ValueError, match="too much"):
        checked_text(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").unlink()
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(OSError, match="regular"):
        checked_text(tmp_path / "a.yaml")
