"""What a docstring says of arguments is about arguments that exist: ruff finds those that are missing, not others."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import diagnostics
import dtk

_ARGS = re.compile(r"^Args:\n((?:(?: .*)?\n?)+)", re.M)
_NAME = re.compile(r"^    (\*{0,2}\w+):", re.M)


def strangers(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield function and name of each described argument that the function, or the class's constructor, lacks."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or not (text := ast.get_docstring(node)):
            continue
        takes = (
            [node] if isinstance(node, ast.FunctionDef) else [n for n in node.body if isinstance(n, ast.FunctionDef)]
        )
        names = {argument.arg for take in takes for argument in ast.walk(take.args) if isinstance(argument, ast.arg)}
        if isinstance(node, ast.ClassDef):
            names |= {
                field.target.id
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            }
        for section in _ARGS.findall(text):
            yield from ((node.name, name) for name in _NAME.findall(section) if name.lstrip("*") not in names)


def test_described_arguments_exist() -> None:
    wrong = []
    for package in (dtk, diagnostics):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            wrong += [(path.name, *item) for item in strangers(ast.parse(path.read_text(encoding="utf-8")))]
    assert not wrong


def test_an_argument_that_was_renamed_is_found() -> None:
    source = 'def step(count):\n    """Step.\n\n    Args:\n        number: of steps.\n    """\n'
    assert list(strangers(ast.parse(source))) == [("step", "number")]
    assert not list(strangers(ast.parse(source.replace("number:", "count:"))))
