"""Classifies what a rank's main thread is doing, by frames, native frames (`blocking_calls.yaml`) or source line."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside, read_table, table_beside
from diagnostics.contract.formatting import Phrase
from diagnostics.evidence.model import Frame, Stacks, Thread
from diagnostics.evidence.stacks.dumps import is_native, is_users, main_thread, where
from diagnostics.evidence.stacks.source_file import source

Kind = Literal["collective", "lock", "file I/O", "process", "network", "sleep", "device", "input", "store"]
Blocks = tuple[Kind, Phrase]  # Kind of resource a call may block on and its wording: `("lock", "waiting for a lock")`.

_CALLS: dict[str, Any] = read_table(Path(__file__).with_name("blocking_calls.yaml"))
_BLOCKS: dict[str, Blocks] = {name: (kind, Phrase(name, words, {})) for name, (kind, words) in _CALLS["blocks"].items()}


def _by_name(names: dict[str, list[str]]) -> dict[str, Blocks]:
    return {name: _BLOCKS[blocks] for blocks, group in names.items() for name in group}


LOCK, READ, STORE, WORK = (_BLOCKS[name] for name in ("lock", "read", "store", "work"))
CALLS = _by_name(_CALLS["calls"])
METHODS = {kind: _by_name(names) for kind, names in _CALLS["methods"].items()}
"""Kind of object -> method in C, or `""` for entering or iterating it."""
MAKERS: dict[str, str] = {maker: kind for kind, makers in _CALLS["makers"].items() for maker in makers}
"""What makes an object -> its kind."""
QUICK, QUICK_METHODS = frozenset(_CALLS["quick"]), frozenset(_CALLS["quick_methods"])
"""Builtins and methods that never block."""
_NATIVE, _KERNEL = (
    tuple((re.compile(pattern), _BLOCKS[name]) for name, pattern in _CALLS[table]) for table in ("native", "kernel")
)


class Waiting(Struct, frozen=True):
    """What a line of source waits for."""

    kind: Kind
    words: Phrase
    """For example `waiting for a lock`."""
    call: str
    """For example `fcntl.flock()` or `with guard`."""


_Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def waiting(frame: Frame, taken_s: float | None) -> Waiting | None:
    """Return what the source line of a thread's innermost frame waits for, or None if that is uncertain.

    The frame's file must be an absolute path on this machine, and not have changed since `taken_s`, if that is known.
    """
    if not PurePath(frame.file).is_absolute() or frame.line < 1:
        return None
    text = source(frame.file)
    if text is None or (taken_s is not None and text.changed_s > taken_s):
        return None
    return _Line(_module(text.tree), frame.line).waits(frame.function)


class _Module:
    """The meaning of names in a file: imports, its own functions, and the kinds of its objects."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.imported: dict[str, str] = {}
        self.own: set[str] = set()
        """Functions and classes of the file, which have a frame of their own while they run."""
        self.kinds_of_names: dict[str, set[str]] = {}
        """Name or attribute -> kinds of the objects assigned to it; `""` = another kind."""
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imported[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.own.add(node.name)
        for node in nodes:
            for target, value in _bindings(node):
                kind = MAKERS.get(self.dotted(value.func), "") if isinstance(value, ast.Call) else ""
                self.kinds_of_names.setdefault(_short(target), set()).add(kind)

    def dotted(self, function: ast.expr) -> str:
        """Return the full name of a function, such as `fcntl.flock`; empty if it is neither imported nor built in."""
        parts: list[str] = []
        while isinstance(function, ast.Attribute):
            parts.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name) or function.id in self.own or function.id in self.kinds_of_names:
            return ""
        root = self.imported.get(function.id)
        if root is None:
            return function.id if not parts and hasattr(builtins, function.id) else ""
        return ".".join((root, *reversed(parts)))

    def kind_of(self, value: ast.expr) -> str:
        """Return the kind of an object from all assignments to its name in the file; empty if they differ."""
        kinds = self.kinds_of_names.get(_short(value), set())
        return next(iter(kinds)) if len(kinds) == 1 else ""


_module = lru_cache(maxsize=4)(_Module)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield the names that a statement binds, with their values if known."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _parts(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
        yield from _parts(node.target, node.value)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _parts(node.optional_vars, node.context_expr)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _parts(node.target, None)
    elif isinstance(node, ast.arg):
        yield ast.Name(node.arg), None


def _parts(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(target, ast.Name | ast.Attribute):
        yield target, value
    elif isinstance(target, ast.Tuple | ast.List | ast.Starred):
        for part in ast.walk(target):
            if isinstance(part, ast.Name | ast.Attribute):
                yield part, None


def _short(target: ast.expr) -> str:
    """Return the key of a name in `_Module.made`: `self.lock` and `other.lock` count as one object, `.lock`."""
    if isinstance(target, ast.Attribute):
        return f".{target.attr}"
    return target.id if isinstance(target, ast.Name) else ""


class _Line(Struct):
    """One line, and everything in it that may block."""

    module: _Module
    line: int
    possible: list[Waiting] = field(default_factory=list)
    doubtful: bool = False

    def waits(self, function: str) -> Waiting | None:
        """Return what the line waits for, if it is in this function and there is only one possibility."""
        scope = _innermost(self.module.tree, self.line)
        name = function.rpartition(".")[2]
        if (getattr(scope, "name", "") or "<module>") != name or isinstance(scope, ast.Lambda):
            return None
        todo: list[ast.AST] = [scope]
        while todo:  # All nodes of the function, except those of nested functions.
            inside = [node for node in ast.iter_child_nodes(todo.pop()) if not isinstance(node, _SCOPES)]
            todo += inside
            for node in inside:
                self._look(node)
        kinds = {(call.kind, call.words) for call in self.possible}
        return self.possible[0] if len(kinds) == 1 and not self.doubtful else None

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            if self.line in (node.lineno, node.func.end_lineno):
                self._call(node.func)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if item.context_expr.lineno == self.line and not isinstance(item.context_expr, ast.Call):
                    self._object(item.context_expr, "", f"with {ast.unparse(item.context_expr)}", named=True)
        elif isinstance(node, ast.For) and node.iter.lineno == self.line and not isinstance(node.iter, ast.Call):
            self._object(node.iter, "", f"for ... in {ast.unparse(node.iter)}")

    def _call(self, function: ast.expr) -> None:
        dotted = self.module.dotted(function)
        if dotted in CALLS:
            self.possible.append(Waiting(*CALLS[dotted], f"{dotted}()"))
        elif isinstance(function, ast.Attribute) and not dotted:
            self._object(function.value, function.attr, f"{ast.unparse(function)}()", named=function.attr == "acquire")
        elif dotted not in QUICK and not (isinstance(function, ast.Name) and function.id in self.module.own):
            self.doubtful = True

    def _object(self, value: ast.expr, method: str, text: str, named: bool = False) -> None:
        """Record what a method of an object, or a `with` or `for` statement over it, waits for."""
        blocks = METHODS.get(self.module.kind_of(value), {}).get(method)
        if blocks is None and named and (method == "acquire" or _TEXT["named_lock"].search(_short(value).lstrip("."))):
            blocks = LOCK
        elif blocks is None and method == "wait":
            blocks = WORK  # The wait() of Python's own objects has a frame of its own.
        if blocks is not None:
            self.possible.append(Waiting(*blocks, text if len(text) <= 60 else f"{method}()" if method else "with"))
        elif method not in QUICK_METHODS:
            self.doubtful = True


def _innermost(tree: ast.Module, line: int) -> _Scope:
    """Return the function or class that contains a line. A `def` line itself belongs to the enclosing scope."""
    scope: _Scope = tree
    todo: list[ast.AST] = [tree]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, _SCOPES):
                body = node.body if isinstance(node.body, list) else [node.body]
                if body[0].lineno <= line <= (node.end_lineno or 0):
                    scope, todo = node, [node]
                    break
            else:
                todo.append(node)
    return scope


Doing = Literal[
    "collective", "data loader", "file I/O", "lock", "process", "network", "compile", "debugger", "sleep", "device",
    "stopped", "computing", "importing", "user code", "unknown", "input", "store",
]  # fmt: skip


class Activity(Struct, frozen=True):
    """What a rank's main thread is doing."""

    doing: Doing
    words: Phrase
    """For example `waiting for a lock: fcntl.flock()`; without the line."""
    frame: Frame | None
    """The user's line, if any."""
    aside: str = ""
    """A clause to append to `words` that says what else this may be."""

    @property
    def in_loader(self) -> "Activity":
        """The same activity as part of the data loader."""
        return replace(self, doing="data loader", words=phrase("in_loader", what=self.words))


_TABLE: dict[str, Any] = table_beside(__file__)
_TEXT = patterns_beside(__file__, "patterns")


def phrase(row: str, **figures: object) -> Phrase:
    """Return a phrase from a row of `words` in the YAML file; the report fills in the figures."""
    return Phrase(row, _TABLE["words"][row], figures)


_RULES = tuple(
    (rule["kind"], Phrase(rule["kind"], rule["words"], {}), re.compile("".join(rule["pattern"])))
    for rule in ({"words": _TABLE["words"][rule["kind"]]} | rule for rule in _TABLE["rules"])
)
NOWHERE = Activity("unknown", phrase("unknown"), None)
_LOOK = 12
"""Number of innermost frames by which an activity is classified; the training loop is further out."""


def doing(stacks: Stacks, taken_s: float | None = None) -> Activity:
    """Return what the main thread is doing; `unknown` if it has no frames.

    `taken_s` is an upper bound of the time of the dump (seconds since 1970), used if the dump does not contain it.
    """
    thread = main_thread(stacks)
    if thread is None or not thread.frames:
        return NOWHERE
    frame = where(stacks)
    python = [frame for frame in thread.frames if not is_native(frame)]
    # Library frames inside the user's innermost frame. The names of the user's functions are not used.
    inner = [_place(frame) for frame in takewhile(lambda frame: not (frame.line and is_users(frame)), python[:_LOOK])]
    finding: tuple[Doing, Phrase] | None = next(((k, w) for k, w, rule in _RULES if any(map(rule.search, inner))), None)
    in_loader = any(_TEXT["loader"].search(_place(frame)) for frame in python[:_LOOK])
    if finding is None or (in_loader and finding[0] != "data loader"):
        finding = _by_call(thread, python, stacks.time_s or taken_s) or finding
    if in_loader and finding is None:
        finding = "data loader", phrase("data loader")
    kind, words = finding or ("user code", phrase("user code"))
    at = Activity(kind, words, frame, "" if in_loader else _TABLE["asides"].get(kind, ""))
    # Without workers, the user's dataset runs in the main thread.
    return at.in_loader if in_loader and kind != "data loader" else at


def _by_call(thread: Thread, python: list[Frame], taken_s: float | None) -> tuple[Doing, Phrase] | None:
    """Return the blocking call in C of the innermost frame: from native frames, else from the source line."""
    native = list(takewhile(is_native, thread.frames))
    calls = [blocks for frame in native if (blocks := blocking_call(frame.function)) is not None]
    is_read = bool(calls) and calls[-1] == READ  # As of a file, or of a terminal by input().
    line = waiting(python[0], taken_s) if python and (is_read or not native) else None
    if line is not None and (line.kind == "input" or not calls):
        return line.kind, phrase("in_call", what=line.words, call=line.call)
    return calls[-1] if calls else None


def _place(frame: Frame) -> str:
    """Return `file:function` of a frame without the class, which py-spy prints and faulthandler does not."""
    return f"{frame.file.replace(chr(92), '/')}:{frame.function.rpartition('.')[2]}"


def blocked_in_kernel(wchan: str) -> Blocks | None:
    """Return what a function of the kernel shows that a thread waits for, or None if it may be anything."""
    return next((blocks for pattern, blocks in _KERNEL if pattern.search(wchan)), None)


def blocking_call(function: str) -> Blocks | None:
    """Return what a C function may block in, or None if it is not a known one."""
    name = function.removesuffix("_nocancel")
    if name.startswith("__"):
        name = name.removeprefix("__GI_").lstrip("_").removeprefix("libc_")
    return next((blocks for pattern, blocks in _NATIVE if pattern.match(name)), None)
