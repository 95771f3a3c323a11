"""Causes hold figures and names of rows: their sentences stand in the YAML files beside them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnostics import causes

ROOT = Path(causes.__file__).parent
FAMILIES = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("_"))
WORDS = 4
"""Words from which a text counts as prose; names, keys and units have fewer."""


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string of `WORDS` or more that is no docstring, no pattern and not of an exception.

    An f-string counts as a whole, with `{}` for each figure.
    """
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) or (isinstance(node, ast.Raise | ast.Call) and _says_itself(node)):
            parts = ast.walk(node) if not isinstance(node, ast.Expr) else [node.value]
            skipped.update(part for part in parts if isinstance(part, ast.Constant | ast.JoinedStr))
        if node in skipped:
            continue
        text = ""
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if len(text.split()) >= WORDS:
            yield getattr(node, "lineno", 0), text


def _says_itself(node: ast.Raise | ast.Call) -> bool:
    """Whether it is an exception, or a pattern that is searched for."""
    return isinstance(node, ast.Raise) or (isinstance(node.func, ast.Attribute) and node.func.attr == "compile")


@pytest.mark.parametrize("family", [".", *FAMILIES])
def test_causes_build_no_sentences(family: str) -> None:
    by_name = {path.name: [*prose(path.read_text(encoding="utf-8"))] for path in sorted((ROOT / family).glob("*.py"))}
    assert {name: texts for name, texts in by_name.items() if texts} == {}


@pytest.mark.parametrize("name", ["drawings", "symptoms", "without_cause"])
def test_statements_and_drawings_of_the_report_build_no_sentences(name: str) -> None:
    assert [*prose((ROOT.parent / "report" / f"{name}.py").read_text(encoding="utf-8"))] == []


NO_SENTENCES = {
    "analysis": {
        "divergence/evidence_terms.py": 8,  # Names of terms, typed as literals; not printed.
        "divergence/explanation.py": 6,
        "divergence/loop_exit.py": 2,
        "divergence/single_calls.py": 1,
        "histories/printed.py": 1,  # Arguments of a call, as gloo prints them.
        "memory/out_of_memory.py": 1,  # A record, quoted.
    },
    "contract": {
        "artifacts.py": 30,  # What each file of a run folder holds: runs/README.md lists it.
        "formatting.py": 1,  # Figures as text are its subject.
        "mesh.py": 1,  # A formula of dimensions.
        "suggest.py": 1,  # Part of errors.
    },
    "evidence": {
        "budget.py": 3,  # Errors of this program and what to do.
        "endings.py": 1,  # A message shortened to what failed.
        "job/gather.py": 3,  # Progress, and what else a folder holds.
        "logs/patterns.py": 1,  # A format of dates.
        "logs/streams.py": 1,  # What Python prints.
        "logs/tracebacks.py": 2,
        "memory/history.py": 2,  # Names of categories, as in report.json.
        "memory/levels.py": 2,
        "readers/nsys.py": 7,  # SQL.
        "safe_pickle.py": 2,  # Errors.
        "limits.py": 1,
        "stacks/activity.py": 1,  # Code.
    },
    "tree": {
        "model.py": 3,  # Titles of gates, and a type.
        "settings.py": 1,  # What a line of the configuration does.
    },
}
"""Folder -> module -> strings in it that are neither sentences of a report nor titles of readers."""


@pytest.mark.parametrize("folder", NO_SENTENCES)
def test_what_comes_before_the_report_builds_no_sentences(folder: str) -> None:
    root, allowed = ROOT.parent / folder, NO_SENTENCES[folder]
    texts: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = ["", *source.splitlines()]
        texts[str(path.relative_to(root))] = [text for line, text in prose(source) if "title=" not in lines[line]]
    new = {name: result for name, result in texts.items() if len(result) > allowed.get(name, 0)}
    assert not new, "their place is a YAML file or the report"
    assert {name: count for name, count in allowed.items() if len(texts[name]) < count} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""A docstring of many words is none."""\nx = "loss_scale"', []),
        ('x = "rank 3 waits for rank 2"', ["rank 3 waits for rank 2"]),
        ('x = f"rank {a} waits for {b}"', ["rank {} waits for {}"]),
        ('re.compile("no route to any host")\nraise ValueError(f"there is no rank {a}")', []),
    ],
)
def test_what_counts_as_a_sentence(source: str, expected: list[str]) -> None:
    assert [text for _, text in prose(source)] == expected
