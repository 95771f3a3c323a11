"""What the program's own text says: whether a line stands in the loop that another line is in.
Looks into the file that a stack names, if it lies here and is older than the call; else it says nothing.
"""

import ast
from collections.abc import Iterable
from typing import Any, Literal

from diagnostics.evidence.model import Frame
from diagnostics.evidence.stacks.source_file import source

Place = Literal["inside", "leaves", "outside", "no loop", "unknown"]
"""In the same loop; in it, and then out of it by `break` or `return`; behind or before it; there is none."""
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_CLOCK_S = 1.0  # A file may look this much younger than the call by the clocks of a shared file system.


def place(file: str, inside: Iterable[int], line: int, before_s: float | None) -> Place:
    """Where `line` stands, seen from the innermost loop that holds all lines of `inside`, in one function.

    Args:
        file: as a stack names it.
        inside: lines of calls that a loop repeats.
        line: the line in question.
        before_s: when the call was made, seconds since 1970: text that is younger says nothing.
    """
    tree = _tree(file, before_s)
    lines = sorted(set(inside))
    if tree is None or not lines:
        return "unknown"
    function = _innermost(tree, _FUNCTIONS, [lines[0]])
    if any(_innermost(tree, _FUNCTIONS, [one]) is not function for one in (*lines, line)):
        return "unknown"
    loop = _innermost(function or tree, _LOOPS, lines)
    if loop is None:
        return "no loop"
    if not _spans(loop, line):
        return "outside"
    inner = (node for node in ast.walk(loop) if node is not loop)
    blocks: list[Any] = [getattr(node, name, None) for node in inner for name in ("body", "orelse", "finalbody")]
    for block in blocks:  # Whether the one of this line continues to a `break` or a `return`.
        at = [n for n, one in enumerate(block) if _spans(one, line)] if isinstance(block, list) else []
        if at and any(isinstance(one, ast.Break | ast.Return) for one in block[at[0] :]):
            return "leaves"
    return "inside"


def exclusive(file: str, one: int, other: int, before_s: float | None) -> bool:
    """Whether two lines stand in an `if` and its `else`, so that a rank comes to one of them only."""
    tree = _tree(file, before_s)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.If):
            blocks = (node.body, node.orelse)
            sides = [[any(_spans(part, line) for part in block) for line in (one, other)] for block in blocks]
            if sides in ([[True, False], [False, True]], [[False, True], [True, False]]):
                return True
    return False


def called(file: str, inside: Iterable[Frame], function: str, before_s: float | None) -> Place:
    """Where the calls of `function` stand, as `place` says of a line; `unknown` unless all of them agree.

    Args:
        file: that defines it.
        inside: innermost lines of calls that a loop repeats; in the same file and in one function.
        function: whose callers were not recorded.
        before_s: as in `place`.
    """
    frames = list(inside)
    tree = _tree(file, before_s)
    if tree is None or any(frame.file != file for frame in frames):
        return "unknown"
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and function == _name(node)}
    places = {place(file, (frame.line for frame in frames), line, before_s) for line in lines}
    return places.pop() if len(places) == 1 and "no loop" not in places else "unknown"


def conditional(frame: Frame, before_s: float | None, beside: int = 0) -> bool:
    """Whether a line stands in a branch within its innermost loop or function, without the line `beside`."""
    tree = _tree(frame.file, before_s)
    around = _innermost(tree, (*_FUNCTIONS, *_LOOPS), [frame.line]) or tree if tree is not None else None
    branch = _innermost(around, (ast.If, ast.ExceptHandler), [frame.line]) if around is not None else None
    return branch is not None and not _spans(branch, beside)


def loop_variables(file: str, lines: Iterable[int], before_s: float | None) -> tuple[list[str], bool]:
    """Return the names that the `for` loops around any of these lines bind, and whether one may be left early."""
    tree, at = _tree(file, before_s), set(lines)
    fors = (node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.For | ast.AsyncFor))
    loops = [node for node in fors if any(_spans(node, line) for line in at)]
    names = (name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name))
    early = any(isinstance(node, ast.Break | ast.Return) for loop in loops for node in ast.walk(loop))
    return list(dict.fromkeys(names)), early


def calls_the_loop(call: Frame, inside: Iterable[Frame], before_s: float | None) -> Place:
    """Where a call stands whose function calls the one that the loop is in; `outside`, else `unknown`.

    Args:
        call: its line.
        inside: innermost lines of calls that a loop repeats.
        before_s: as in `place`.
    """
    lines: dict[tuple[str, str], list[int]] = {}
    for frame in inside:
        lines.setdefault((frame.file, frame.function.rpartition(".")[2]), []).append(frame.line)
    tree = _tree(call.file, before_s)
    if tree is None or (call.file, call.function.rpartition(".")[2]) in lines:
        return "unknown"
    own = _innermost(tree, _FUNCTIONS, [call.line]) or tree
    named = [(_name(node), node.lineno) for node in ast.walk(own) if isinstance(node, ast.Call)]
    for (file, name), at in lines.items():
        from_here = {line for called, line in named if called == name}
        loop = place(file, at, at[0], before_s)
        if len(from_here) == 1 and call.line not in from_here and loop in {"inside", "leaves"}:
            return "outside"
    return "unknown"


def _name(call: ast.Call) -> str:
    """`train` of `train(...)` and of `loop.train(...)`; what no function is called for others."""
    return getattr(call.func, "id", None) or getattr(call.func, "attr", None) or "()"


def _tree(file: str, before_s: float | None) -> ast.Module | None:
    text = source(file)
    return text.tree if text is not None and before_s is not None and text.changed_s <= before_s + _CLOCK_S else None


def _spans(node: ast.AST, line: int) -> bool:
    """Whether a statement holds a line; of a loop its `else` does not count, since it runs behind it."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if isinstance(node, _LOOPS):
        last = node.body[-1].end_lineno
    return bool(first <= line <= (last or 0))


def _innermost(root: ast.AST, kinds: tuple[type[ast.AST], ...], lines: list[int]) -> ast.AST | None:
    """Return the smallest node of these kinds that spans all lines, ignoring functions nested in `root`."""
    around: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(root))
    while todo:
        node = todo.pop()
        if isinstance(node, kinds) and all(_spans(node, line) for line in lines):
            around.append(node)
        if kinds is _FUNCTIONS or not isinstance(node, _FUNCTIONS):
            todo += ast.iter_child_nodes(node)
    return min(around, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)  # type: ignore[attr-defined]
