"""Answers questions about a line from the source: the loops, conditions and callers around it. The file that a stack
names is read if it exists here and is older than the call; otherwise the answer is that nothing is known.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, Literal

from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.model import Frame
from diagnostics.evidence.stacks.source_file import source

Place = Literal["inside", "leaves", "outside", "no loop", "unknown"]
"""In the same loop; in it, but followed by `break` or `return`; before or after it; there is no loop; no source."""
Condition = Literal["one rank", "all but one", "unless", "some", "none"]
"""It selects one rank; it excludes one rank; a branch before the line skips it; a branch around it; there is none."""
_MOST_TELLING: tuple[Condition, ...] = ("one rank", "all but one", "unless", "some", "none")
_PER_ROUND: frozenset[Condition] = frozenset({"unless", "some"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_TEXT = patterns_beside(__file__)
_TAKES_HANDLER = {"signal", "add_signal_handler"}
_CLOCK_S = 1.0  # Tolerance for the clock of a shared file system.


def place(file: str, inside: Iterable[int], line: int, before_s: float | None) -> Place:
    """Return the place of `line` relative to the innermost loop that contains all lines of `inside`, in one function.

    A file that is newer than the call (at `before_s` since 1970) is not used.
    """
    tree = _tree(file, before_s)
    lines = sorted(set(inside))
    if tree is None or not lines:
        return "unknown"
    function = _innermost(tree, _FUNCTIONS, [lines[0]])
    if any(_innermost(tree, _FUNCTIONS, [each]) is not function for each in (*lines, line)):
        return "unknown"
    loop = _innermost(function or tree, _LOOPS, lines)
    if loop is None:
        return "no loop"
    if not _spans(loop, line):
        return "outside"
    inner = (node for node in ast.walk(loop) if node is not loop)
    blocks: list[Any] = [getattr(node, name, None) for node in inner for name in ("body", "orelse", "finalbody")]
    for block in blocks:  # Does the block of this line continue to a `break` or a `return`?
        at = [n for n, statement in enumerate(block) if _spans(statement, line)] if isinstance(block, list) else []
        if at and any(isinstance(statement, ast.Break | ast.Return) for statement in block[at[0] :]):
            return "leaves"
    return "inside"


def exclusive(file: str, first: int, second: int, before_s: float | None) -> bool:
    """Whether the lines are in two branches of one `if` or `match`, so that a rank reaches only one of them.

    If a branch ends in `continue`, or outside of loops in `return`, what follows its `if` is the other one.
    """
    tree, lines = _tree(file, before_s), sorted((first, second))
    if tree is None:
        return False
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.If | ast.Match)):
        sides = [{line for line in lines if _holds(block, line)} for _, block in _blocks(node)]
        if {first} in sides and {second} in sides and first != second:
            return True
        ends = next((block[-1] for _, block in _blocks(node) if _holds(block, lines[0])), None)
        if isinstance(ends, ast.Continue | ast.Return) and not _spans(node, lines[1]):
            own, other = (_innermost(tree, _FUNCTIONS, [line]) for line in lines)
            loop, around = (_innermost(own or tree, _LOOPS, [line]) for line in lines)
            if own is other and loop is around and not (isinstance(ends, ast.Return) and loop):
                return True
    return False


def callers(function: str, around: Frame, before_s: float | None) -> list[Frame]:
    """Return the lines of `around.file` that call a function of that name, as frames.

    A frame's `function` is that of `around` if the line is in it, else empty.
    """
    tree, name = _tree(around.file, before_s), function.rpartition(".")[2]
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree is not None else ()
    lines = sorted({node.lineno for node in calls if _name(node) == name})
    own, *functions = (tree and _innermost(tree, _FUNCTIONS, [line]) for line in (around.line, *lines))
    return [
        Frame(around.file, line, around.function if at is own else "")
        for line, at in zip(lines, functions, strict=True)
    ]


def leading_to(seeds: set[str], file: str, before_s: float | None) -> set[str]:
    """Return the names, those of the file's functions that call one of them, and of variables that may hold these."""
    tree, names = _tree(file, before_s), {*seeds}
    nodes = [*ast.walk(tree)] if tree is not None else []
    names |= {at.id for at in nodes if isinstance(at, ast.Name) and type(at.ctx) is ast.Store}
    names |= {at.arg for at in nodes if isinstance(at, ast.arg)}
    nodes = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    called = {
        getattr(own, "name", ""): {_name(at) for at in ast.walk(own) if isinstance(at, ast.Call)} for own in nodes
    }
    while more := {own for own, calls in called.items() if own and calls & names} - names:
        names |= more
    return names


def calls_at(frame: Frame, before_s: float | None, name: str) -> set[str]:
    """Return the text of the calls that a line makes, as `ast.unparse` writes them; those of `name`, if any is."""
    tree = _tree(frame.file, before_s)
    calls = [node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.Call)]
    calls = [call for call in calls if call.lineno == frame.line]
    return {ast.unparse(call) for call in [call for call in calls if _name(call) == name] or calls}


def comes_later(frame: Frame, calls: Collection[str], before_s: float | None, peer_line: int = 0) -> bool | None:
    """Return whether a branch without `peer_line` makes one of `calls` from a line on; None if only others follow."""
    tree, later = _tree(frame.file, before_s), list[ast.AST]()
    function: Any = (_innermost(tree, _FUNCTIONS, [frame.line]) or tree) if tree is not None else None
    block = getattr(function, "body", None)
    while isinstance(block, list) and (at := [n for n, own in enumerate(block) if _spans(own, frame.line)]):
        later += [] if _holds(block, peer_line) else block[at[0] + 1 :]
        node = block[at[0]]
        block = next((inner for _, inner in _blocks(node) if _holds(inner, frame.line)), [])
        later += [] if block else [node]
    nodes = [node for statement in later for node in ast.walk(statement) if isinstance(node, ast.Call)]
    if any(ast.unparse(call) in calls for call in nodes):
        return True
    return None if not later or any(call.lineno != frame.line for call in nodes) else False


def condition(frame: Frame, before_s: float | None, peer_line: int = 0) -> tuple[Condition, int]:
    """Return the condition that decides whether a line is run and not the line `peer_line`, and its own line (or 0).

    It is a branch around the line, an `if` before it that skips it, an exception that is caught around it, or a signal
    that the function handles. One that selects a single rank counts anywhere in the function, any other one only within
    the innermost loop. Of several, it is one that names the rank, if any does.
    """
    tree, answers = _tree(frame.file, before_s), set[tuple[int, bool, int]]()
    block: list[Any] = tree.body if tree is not None else []
    function = _innermost(tree, _FUNCTIONS, [frame.line]) if tree is not None else None
    # To return from another function than that of `peer_line` is to skip the line.
    ends = (ast.Raise, ast.Break, *[ast.Return] * (function is None or _spans(function, peer_line)))
    while at := [number for number, statement in enumerate(block) if _spans(statement, frame.line)]:
        node, tests = block[at[0]], list[tuple[str, Condition, int]]()
        if not _holds(block[at[0] :], peer_line):
            skips = (statement for statement in block[: at[0]] if isinstance(statement, ast.If))
            skips = (statement for statement in skips if isinstance(statement.body[-1], ast.Continue | ast.Return))
            tests += [(f"not ({ast.unparse(statement.test)})", "unless", statement.lineno) for statement in skips]
        test, block = next((branch for branch in _blocks(node) if _holds(branch[1], frame.line)), ("", []))
        handlers = node.handlers if isinstance(node, ast.Try) and _holds(node.body, frame.line) else []
        goes_on = (own.lineno for own in handlers if not isinstance(own.body[-1], ends))
        tests += [("error", "unless", line) for line in goes_on if not _spans(node, peer_line)]
        if test and not _spans(node, peer_line):
            tests.append((test, "some", node.lineno))
        for test, otherwise, line in tests if tree is not None else ():
            test = _ranks(tree).sub("rank", test)
            answers.add((_MOST_TELLING.index(_of_one_rank(test) or otherwise), "rank" not in test, -line))
        if isinstance(node, (*_FUNCTIONS, *_LOOPS)):
            answers = {at for at in answers if isinstance(node, _LOOPS) and _MOST_TELLING[at[0]] not in _PER_ROUND}
    if tree is not None and not answers:  # Only ranks that get the signal run the handler of `signal.signal`.
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 2)
        given = {ast.unparse(call.args[1]).rpartition(".")[2] for call in calls if _name(call) in _TAKES_HANDLER}
        handles = getattr(function, "name", "") in given
        answers |= {(_MOST_TELLING.index("some"), True, 0)} if handles else set()
    telling, _, line = min(answers, default=(_MOST_TELLING.index("none"), True, 0))
    return _MOST_TELLING[telling], -line


def most_telling(conditions: Iterable[Condition]) -> Condition:
    """Return the condition that says most about who meets it."""
    return min(conditions, key=_MOST_TELLING.index, default="none")


def loop_variables(file: str, lines: Iterable[int], before_s: float | None) -> tuple[list[str], bool]:
    """Return the names that the `for` loops around some, but not all, of the lines bind, and whether one may end early.

    Loops around a single line count as well. A loop may end early if it contains `break` or `return`.
    """
    tree, at = _tree(file, before_s), set(lines)
    fors = (node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.For | ast.AsyncFor))
    loops = [node for node in fors if 0 < sum(_spans(node, line) for line in at) < max(len(at), 2)]
    names = (name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name))
    early = any(isinstance(node, ast.Break | ast.Return) for loop in loops for node in ast.walk(loop))
    return list(dict.fromkeys(names)), early


@lru_cache(maxsize=8)
def _ranks(tree: ast.Module) -> re.Pattern[str]:
    """Return the names that the program sets to nothing but the rank, such as `r` in `r = dist.get_rank()`."""
    stored = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and type(node.ctx) is ast.Store)
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        rows = zip(*(getattr(side, "elts", [side]) for side in (node.targets[0], node.value)), strict=False)
        stored.subtract(ast.unparse(to) for to, value in rows if _TEXT["rank"].fullmatch(ast.unparse(value)))
    return re.compile("|".join(rf"(?<![\w.]){name}\b" for name, others in stored.items() if others == 0) or "(?!)")


def _name(call: ast.Call) -> str:
    """Return `train` for `train(...)` and `loop.train(...)`; `()`, which is no name, for other calls."""
    return getattr(call.func, "id", None) or getattr(call.func, "attr", None) or "()"


def _tree(file: str, before_s: float | None) -> ast.Module | None:
    text = source(file)
    return text.tree if text is not None and before_s is not None and text.changed_s <= before_s + _CLOCK_S else None


def _spans(node: ast.AST, line: int) -> bool:
    """Whether a statement contains a line; the `else` of a loop does not count, as it runs after the loop."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if isinstance(node, _LOOPS):
        last = node.body[-1].end_lineno
    return bool(first <= line <= (last or 0))


def _holds(block: list[Any], line: int) -> bool:
    return any(_spans(statement, line) for statement in block)


def _of_one_rank(test: str) -> Literal["one rank", "all but one"] | None:
    """Return whether a condition, as `ast.unparse` writes it, can hold on one rank only, or fails on one rank only."""
    try:
        expression = ast.parse(test, mode="eval").body
    except SyntaxError:  # The pattern of a `case`.
        return None
    results: dict[Literal["one rank", "all but one"], bool] = {"one rank": True, "all but one": False}
    return next((name for name, holds in results.items() if _one_rank(expression, holds=holds)), None)


def _one_rank(test: ast.expr, *, holds: bool) -> bool:
    """Whether one rank at most can have this result of the test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _one_rank(test.operand, holds=not holds)
    if isinstance(test, ast.BoolOp):
        results = [_one_rank(value, holds=holds) for value in test.values]
        return any(results) if isinstance(test.op, ast.And) is holds else all(results)
    text = ast.unparse(test)
    if isinstance(test, ast.Compare):
        right = test.comparators[-1]
        ranks = [rank for rank in getattr(right, "elts", ()) if not isinstance(rank, ast.UnaryOp)]  # -1 is no rank.
        if ranks[1:] or isinstance(getattr(right, "op", None), ast.BitOr):
            return False  # `rank in (0, 1)`, `case 0 | 1`
        return holds is not isinstance(test.ops[0], ast.NotEq | ast.NotIn) and bool(_TEXT["one_rank"].search(text))
    # A rank as a number is true on all ranks but rank 0.
    named = bool(_TEXT["one_rank"].search(text))
    return named if holds else not named and bool(_TEXT["one_rank"].search(f"not {text}"))


def _blocks(node: Any) -> list[tuple[str, list[Any]]]:
    """Return the blocks of a statement, each with the condition under which it runs; "" = none."""
    if isinstance(node, ast.Match):
        texts = [(case, ast.unparse(node.subject), ast.unparse(case.pattern)) for case in node.cases]
        cases = [(case, f"{subject} {'!=' if text == '_' else '=='} {text}") for case, subject, text in texts]
        return [(f"{test} and {ast.unparse(case.guard)}" if case.guard else test, case.body) for case, test in cases]
    test = ast.unparse(node.test) if isinstance(node, ast.If) else ""
    if isinstance(node, ast.ExceptHandler):
        test = "error"  # Entered by some ranks; its own expression names types of exceptions.
    tests = {"orelse": f"not ({test})" if test else ""}
    return [(tests.get(name, test), getattr(node, name, [])) for name in ("body", "orelse", "handlers", "finalbody")]


def _innermost(root: ast.AST, kinds: tuple[type[ast.AST], ...], lines: list[int]) -> ast.AST | None:
    """Return the smallest node of these kinds that spans all lines; loops in functions nested in `root` are ignored."""
    around: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(root))
    while todo:
        node = todo.pop()
        if isinstance(node, kinds) and all(_spans(node, line) for line in lines):
            around.append(node)
        if kinds is _FUNCTIONS or not isinstance(node, _FUNCTIONS):
            todo += ast.iter_child_nodes(node)
    return min(around, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)  # type: ignore[attr-defined]
