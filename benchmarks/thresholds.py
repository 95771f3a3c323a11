"""Where a threshold may lie: each is moved up and down until an answer about some job changes.

    python benchmarks/thresholds.py [NAME ...] [--cases KIND ...] [--folder FOLDER] [--new]    write thresholds.json
    python benchmarks/thresholds.py --page     write docs/thresholds.md, and follow constants to other modules

The jobs are those of `threshold_cases.py`. First every job is diagnosed with constants that note with what they are
compared, so that a value is tried only on jobs for which a comparison turns. A constant that is no threshold (a limit,
a format, the size of a page) has a line in thresholds.yaml instead, as has one that no job uses.
"""

import argparse
import ast
import json
import operator
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from msgspec import Struct, convert, to_builtins

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SOURCE = ROOT / "diagnostics"
RESULTS = Path(__file__).with_suffix(".json")
OTHERS = Path(__file__).with_suffix(".yaml")
PAGE = ROOT / "docs" / "thresholds.md"
FACTORS = (0.9, 0.75, 0.5, 0.25, 0.1)
"""Parts of a value that are tried below it, and the inverse above it; of a share also parts of its distance to 1."""


class Constant(Struct, frozen=True):
    """A numeric constant of a module below `diagnostics`."""

    name: str
    """`module.NAME`."""
    about: str
    """Its comment, or the text below it."""
    line: int

    @property
    def value(self) -> Any:
        """Its present value."""
        module, _, constant = f"diagnostics.{self.name}".rpartition(".")
        return getattr(import_module(module), constant)


class Move(Struct, frozen=True):
    """The nearest tried value with another answer."""

    value: float
    others: int
    wrong: int
    """Of them, answers that were right and are wrong now."""
    right: int
    """The other way round."""
    jobs: list[str] = []
    """Some of these jobs."""


class Measured(Struct, frozen=True):
    """What was found about a threshold."""

    value: float
    low: float
    """The lowest tried value from which on no answer differs."""
    high: float
    jobs: dict[str, int]
    """Kind of job -> number of those whose diagnosis reads it."""
    below: Move | None = None
    above: Move | None = None


class Results(Struct, frozen=True):
    """What thresholds.json holds."""

    jobs: dict[str, int]
    """Kind -> number of all jobs."""
    right: dict[str, int]
    """Kind -> number of them about which the answer is right, or whose truth is not known."""
    thresholds: dict[str, Measured]


@cache
def constants() -> dict[str, Constant]:
    """Return all numeric constants of modules, with what the source says about each."""
    by_name = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        body, lines = ast.parse(text).body, text.splitlines()
        for number, node in enumerate(body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if value is None or not is_number(value):
                continue
            below = body[number + 1] if number + 1 < len(body) else None
            about = ""
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                about = str(below.value.value)
            elif match := re.search(r"#\s(.*)", lines[(node.end_lineno or node.lineno) - 1]):
                about = match[1]
            for named in (each for target in targets for each in getattr(target, "elts", [target])):
                if isinstance(named, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]*", named.id):
                    name = f"{module}.{named.id}"
                    by_name[name] = Constant(name, " ".join(about.split()), node.lineno)
    return by_name


def is_number(node: ast.expr) -> bool:
    """Return whether an expression is made of numbers, or of numbers and other constants."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=inner):
            return is_number(inner)
        case ast.BinOp(left=left, right=right):
            named = isinstance(left, ast.Name) + isinstance(right, ast.Name)
            return named < 2 and all(isinstance(side, ast.Name) or is_number(side) for side in (left, right))
        case ast.Tuple(elts=parts):
            return bool(parts) and all(map(is_number, parts))
        case ast.Call(func=ast.Name(id="max" | "min"), args=parts):
            return any(map(is_number, parts))
        case ast.Call(func=ast.Name(id="float")):
            return True
    return False


@cache
def _said() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(OTHERS.read_text(encoding="utf-8"))
    return table


@cache
def others() -> dict[str, tuple[str, str]]:
    """Return the constants that are no measured thresholds: name -> (section of thresholds.yaml, reason)."""
    sections = _said()["sections"]
    return {
        name: (kind, reason or "") for kind, lines in sections.items() for name, reason in lines["constants"].items()
    }


def results() -> Results:
    """Return what has been measured."""
    return convert(json.loads(RESULTS.read_text(encoding="utf-8")), Results)


def holders(name: str) -> list[tuple[ModuleType, str]]:
    """Return the modules that hold a constant, and its name there: its own, and those that import it."""
    module, _, constant = f"diagnostics.{name}".rpartition(".")
    result = [(import_module(module), constant)]
    for each in [*sys.modules.values()]:
        for origin, theirs, own in IMPORTED.get(each.__name__, ()) if isinstance(each, ModuleType) else ():
            if (origin, theirs) == (module, constant):
                result.append((each, own))
    return result


def imported() -> dict[str, list[tuple[str, str, str]]]:
    """Return module -> (module, name, own name) of all that it imports from modules of `diagnostics`."""
    result: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("diagnostics"):
                result[name] += [(node.module, alias.name, alias.asname or alias.name) for alias in node.names]
    return result


IMPORTED = imported()


@contextmanager
def changed(name: str, value: float) -> Iterator[None]:
    """Give a threshold another value, also in the modules that have imported it."""
    kept = holders(name)
    before = getattr(*kept[0])
    for module, constant in kept:
        setattr(module, constant, value)
    try:
        yield
    finally:
        for module, constant in kept:
            setattr(module, constant, before)


class Uses:
    """How the diagnosis of one job uses a constant."""

    def __init__(self) -> None:
        self.met: set[float] = set()
        """Numbers that it is compared with."""
        self.computed = False
        """Whether it is calculated with, or used where that is not seen."""

    def decides(self, before: float, after: float) -> bool:
        """Return whether another value may lead to another answer."""
        low, high = sorted((before, after))
        return self.computed or any(low <= each * (1 + 1e-9) and each * (1 - 1e-9) <= high for each in self.met)


class Watched(float):
    """A number that notes how it is used: of one linear in a constant, for which value of it a comparison turns."""

    uses: Uses
    of: float
    """Value of the constant; this is `scale` times it plus `shift`."""
    scale: float
    shift: float
    __hash__ = float.__hash__

    def __index__(self) -> int:
        self.uses.computed = True
        return int(float.__add__(self, 0.0))


def watched(of: float, uses: Uses, scale: float = 1.0, shift: float = 0.0, value: float | None = None) -> Watched:
    """Return `scale` times a constant plus `shift`, watched; `value` is the same without new errors of rounding."""
    result = Watched(of if value is None else value)
    result.uses, result.scale, result.shift, result.of = uses, scale, shift, of
    return result


def _compared(name: str) -> Callable[[Watched, Any], Any]:
    plain = getattr(float, name)

    def compare(self: Watched, other: Any) -> Any:
        if isinstance(other, int | float) and self.scale:
            self.uses.met.add((float(other) - self.shift) / self.scale)
        return plain(self, other)

    return compare


def _calculated(name: str, line: Callable[[float], tuple[float, float]] | None) -> Callable[..., Any]:
    plain = getattr(float, name)

    def calculate(self: Watched, *others: Any) -> Any:
        if line is not None and all(type(other) in (int, float) for other in others):
            scale, shift = line(*others)
            return watched(self.of, self.uses, self.scale * scale, self.shift * scale + shift, plain(self, *others))
        self.uses.computed = True
        if (
            isinstance(self.of, int)
            and self.is_integer()
            and all(type(other) is int for other in others)
            and hasattr(int, name)
        ):
            return getattr(int, name)(operator.index(self), *others)
        return plain(self, *others)

    return calculate


LINEAR: dict[str, Callable[..., tuple[float, float]] | None] = {
    "__add__": lambda other: (1, other),
    "__radd__": lambda other: (1, other),
    "__sub__": lambda other: (1, -other),
    "__rsub__": lambda other: (-1, other),
    "__mul__": lambda other: (other, 0),
    "__rmul__": lambda other: (other, 0),
    "__truediv__": lambda other: (1 / other, 0),
    "__neg__": lambda: (-1, 0),
}
for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(Watched, _name, _compared(_name))
NOT_LINEAR = (
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "pow",
    "rpow",
    "int",
    "float",
    "bool",
    "round",
    "divmod",
)
for _name in [*LINEAR, *(f"__{each}__" for each in NOT_LINEAR)]:
    setattr(Watched, _name, _calculated(_name, LINEAR.get(_name)))


@contextmanager
def all_watched(uses: Mapping[str, Uses]) -> Iterator[None]:
    """Watch how constants are used while a job is diagnosed."""
    rows = [(module, own, getattr(module, own), name) for name in uses for module, own in holders(name)]
    by_name = {name: watched(constants()[name].value, uses[name]) for name in uses}
    for module, own, _, name in rows:
        setattr(module, own, by_name[name])
    try:
        yield
    finally:
        for module, own, before, _ in rows:
            setattr(module, own, before)


def tried(name: str, value: float, *, upwards: bool) -> list[float]:
    """Return the values to try, the nearest first."""
    if isinstance(value, int):
        near = [value + 1, value + 2] if upwards else [value - 1, value - 2]
        far = [round(value / factor if upwards else value * factor) for factor in FACTORS[1:]]
        return [each for each in sorted({*near, *far}, reverse=not upwards) if each >= 0 and each != value]
    if not upwards:
        return [value * factor for factor in FACTORS]
    above = [value / factor for factor in FACTORS]
    if value < 1 and not name.endswith("_S"):  # A share, or a duration.
        above = sorted({*(each for each in above if each < 1), *(1 - (1 - value) * factor for factor in FACTORS)})
    return above


def move(
    name: str, cases: list[Any], today: Mapping[str, Any], uses: Mapping[str, Uses], *, upwards: bool
) -> tuple[float, Move | None]:
    """Return the last value without another answer, and the first with one. The farthest is tried first."""
    last = constants()[name].value
    *nearer, farthest = tried(name, last, upwards=upwards) or [last]
    if (beyond := differing(name, farthest, cases, today, uses)) is None:
        return farthest, None
    for each in nearer:
        if result := differing(name, each, cases, today, uses):
            return last, result
        last = each
    return last, beyond


def differing(
    name: str, value: float, cases: list[Any], today: Mapping[str, Any], uses: Mapping[str, Uses]
) -> Move | None:
    """Return what differs with another value; None if nothing does."""
    requests = [case for case in cases if uses[case.name].decides(constants()[name].value, value)]
    with changed(name, value):
        said = [(case, case.ask()) for case in requests]
    differs = [(case, answer) for case, answer in said if answer != today[case.name]]
    wrong = sum(case.right(today[case.name]) and not case.right(answer) for case, answer in differs)
    right = sum(case.right(answer) and not case.right(today[case.name]) for case, answer in differs)
    some = sorted(case.name for case, _ in differs)[:3]
    return Move(value, len(differs), wrong, right, some) if differs else None


def measure(chosen: list[str], kinds: list[str], folder: Path) -> None:
    """Try other values of each constant, and write what is found after each."""
    from benchmarks.threshold_cases import KINDS, Case, forget, remember

    for path in SOURCE.rglob("*.py"):
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    remember()
    cases, kind_of, today = [], {}, {}
    uses: dict[str, dict[str, Uses]] = {name: {} for name in chosen}
    for kind in kinds:
        for result in KINDS[kind](folder / kind.replace(" ", "_")):
            case = Case(f"{kind}: {result.name}", result.ask, result.right)
            today[case.name], kind_of[case.name] = case.ask(), kind
            own = {name: Uses() for name in chosen}
            with all_watched(own):
                seen = case.ask()
            if seen != today[case.name]:  # Its times are compared with the present, or a file is read only once.
                print(f"left out, as it has another answer now: {case.name}", file=sys.stderr)
                del today[case.name], kind_of[case.name]
                continue
            for name, each in own.items():
                if each.computed or each.met:
                    uses[name][case.name] = each
            cases.append(case)
    counts = Counter(kind_of.values())
    right = Counter(kind_of[case.name] for case in cases if case.right(today[case.name]))
    for case in cases:
        if not case.right(today[case.name]):
            print(f"not right today: {case.name}: {today[case.name]}", file=sys.stderr)
    print(f"{len(cases)} jobs, {sum(right.values())} right or without a truth\n")
    print(f"| threshold | value | used by | same from | to | below | above |\n|{'---|' * 7}")
    before = results() if RESULTS.exists() else Results({}, {}, {})
    by_name = {name: each for name, each in before.thresholds.items() if name in constants() and name not in others()}
    for name in chosen:
        if name.startswith("evidence."):  # A value may change what is read.
            forget()
        own_cases = [case for case in cases if case.name in uses[name]]
        value = constants()[name].value
        by_name.pop(name, None)
        if not own_cases:
            print(f"| {name} | {value:g} | none | | | | |")
            continue
        low, below = move(name, own_cases, today, uses[name], upwards=False)
        high, above = move(name, own_cases, today, uses[name], upwards=True)
        row = Measured(value, low, high, dict(Counter(kind_of[case.name] for case in own_cases)), below, above)
        by_name[name] = row
        print(
            f"| {name} | {value:g} | {len(own_cases)} | {low:g} | {high:g} | {move_text(below)} | {move_text(above)} |",
            flush=True,
        )
        whole = Results({**before.jobs, **counts}, {**before.right, **right}, dict(sorted(by_name.items())))
        RESULTS.write_text(json.dumps(to_builtins(whole), indent=1) + "\n")


def move_text(move: Move | None) -> str:
    """Return what the nearest value with another answer does."""
    if move is None:
        return "-"
    changes = [f"{move.wrong} wrong now"] if move.wrong else []
    changes += [f"{move.right} right now"] if move.right else []
    other = f"{number(move.value)}: {move.others} other answer{'s' if move.others > 1 else ''}"
    return f"{other} ({', '.join(changes)})" if changes else other


def number(value: Any) -> str:
    """Return a value as the page shows it."""
    if isinstance(value, tuple):
        return ", ".join(map(number, value))
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,.4g}"


def moved() -> dict[str, str]:
    """Return constants that are gone, with the only new one of their name: they stand in another module now."""
    expected, listed = constants().keys(), [*results().thresholds, *others()]
    new = [name for name in expected if name not in listed]
    result = {}
    for lost in (name for name in listed if name not in expected):
        same = [name for name in new if name.rpartition(".")[2] == lost.rpartition(".")[2]]
        if len(same) == 1:
            result[lost] = same[0]
    return result


AREAS = {
    "analysis.divergence": "Where ranks diverge",
    "analysis.histories": "Histories of calls",
    "analysis.stall": "Who waits for whom",
    "analysis.symptoms": "What a log alone shows",
    "causes.hang": "Causes of hangs",
    "causes.suspicions": "Suspicions",
    "analysis.memory": "Memory",
    "causes.memory": "Causes of memory",
    "analysis.step_profile": "Where the time of a step goes",
    "causes.overlap": "Causes of slow steps",
    "analysis": "Printed losses, nodes and other analysis",
    "causes": "Other causes",
    "evidence": "Evidence",
    "tree": "The fault tree",
}
HEAD = """# Thresholds

Numbers that decide an answer, and where each may lie. Generated from the comments in `diagnostics/` and the results in
`benchmarks/thresholds.json` by `python benchmarks/thresholds.py --page`.

`python benchmarks/thresholds.py` diagnoses the jobs below, then gives one threshold after another a lower and a
higher value: a tenth and ten times as much (of a share, a tenth of its distance to 1). If an answer about some job
differs there - its outcome, its causes, their ranks, or what is suspected -, it tries 0.9, 0.75, 0.5 and 0.25 times
the value and the inverse (of small whole numbers also the next two) until one differs.

- *Jobs*: those whose diagnosis compares or calculates with the threshold. The evidence of unit tests, of which no truth
  is recorded, is asked only about thresholds that no other job uses.
- *Same answers*: the tried values between which no answer changes; an end with `*` is the farthest one that was tried.
- *Beyond it*: the next value, how many answers differ there, and how many of them become wrong or right.

The examples of the causes are minimal: a number of steps, calls or lines often cannot be higher without losing one.
An answer may also differ without being wrong: it leaves something open, or adds something that the truth does not
judge.

The weights in `diagnostics/analysis/divergence/evidence_terms.yaml` are not in the tables: their signs and order
decide, their values set only the confidence of a finding. The constants of `dtk/` are chosen, as their comments say:
they are defaults and limits, not verdicts.

| jobs | number | right today, or without a known truth |
|---|---|---|
"""


def page() -> str:
    """Return docs/thresholds.md."""
    measured, expected = results(), constants()
    text = HEAD + "".join(f"| {kind} | {n} | {measured.right.get(kind, 0)} |\n" for kind, n in measured.jobs.items())
    rest = dict(measured.thresholds)
    for area, title in AREAS.items():
        rows = [rest.pop(name) and name for name in [*rest] if name.startswith(f"{area}.")]
        text += (
            f"\n## {title}\n| constant | value | what it separates | jobs | same answers | beyond it |\n|{'---|' * 6}\n"
        )
        text += "".join(_row(expected[name], measured.thresholds[name]) for name in rows)
    for section in _said()["sections"].values():
        text += f"\n## {section['title']}\n{section['about']}\n\n| constant | value | what it is |\n|---|---|---|\n"
        for name, reason in section["constants"].items():
            what = " ".join(part for part in (expected[name].about, reason) if part)
            text += f"| `{name}` | {number(expected[name].value)} | {_cell(what)} |\n"
    return text


def _row(constant: Constant, measured: Measured) -> str:
    low = number(measured.low) + ("" if measured.below else "*")
    high = number(measured.high) + ("" if measured.above else "*")
    beyond = "; ".join(move_text(each) for each in (measured.below, measured.above) if each) or "no tried value"
    about = " ".join(filter(None, (constant.about, _said()["notes"].get(constant.name))))
    cells = [f"`{constant.name}`", number(measured.value), _cell(about), str(sum(measured.jobs.values()))]
    return f"| {' | '.join([*cells, f'{low} to {high}', beyond])} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only constants whose name contains it")
    parser.add_argument("--cases", nargs="*", metavar="KIND", help="only kinds of jobs whose name contains it")
    parser.add_argument("--folder", type=Path, help="where jobs that are made for it are kept, to be used again")
    parser.add_argument("--new", action="store_true", help="only constants that have no result with their value yet")
    parser.add_argument("--page", action="store_true", help="write docs/thresholds.md")
    options = parser.parse_args()
    if options.page:
        for old, new in moved().items():
            print(f"{old} is {new} now")
            for file in (RESULTS, OTHERS):
                text = file.read_text(encoding="utf-8")
                file.write_text(re.sub(rf"\b{re.escape(old)}(?=\"?:)", new, text), encoding="utf-8")
            _said.cache_clear()
        PAGE.write_text(page(), encoding="utf-8")
        return
    from benchmarks.threshold_cases import KINDS

    skipped = others()
    every = constants()
    chosen = [name for name in every if name not in skipped and isinstance(every[name].value, int | float)]
    chosen = [name for name in chosen if not options.names or any(part in name for part in options.names)]
    done = results().thresholds if options.new and RESULTS.exists() else {}
    chosen = [name for name in chosen if name not in done or done[name].value != every[name].value]
    kinds = [kind for kind in KINDS if not options.cases or any(part in kind for part in options.cases)]
    with tempfile.TemporaryDirectory() as temporary_directory:
        measure(chosen, kinds, options.folder or Path(temporary_directory))


if __name__ == "__main__":
    main()
