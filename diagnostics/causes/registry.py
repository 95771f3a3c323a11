"""Collects the causes, the traits of their families, and the user's own detectors. Decides nothing.

Every file in a family's folder is a cause. To add one, add `diagnostics/causes/<family>/<name>.py`, which ends in
`CAUSE = declared(...)`, and its table `<name>.yaml`. If others of its family are decided in the same way, the table is
enough: its `decided_by` names the module whose `CAUSE_OF` makes the cause. Files `_<name>.py` hold code of a family.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, convert, field
from msgspec.structs import replace

from diagnostics.contract.causes import AnyCause, Branch, Cause, ExplainedBy, Sign
from diagnostics.contract.files import read_table
from diagnostics.contract.findings import Detector, Outcome
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.model import Problem, shortened

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BRANCHES = tuple(
    Branch(id, title, above=id.rpartition(".")[0])
    for id, title in read_table(Path(__file__).with_name("branches.yaml")).items()
)
"""The gates of the built-in fault trees; each cause names its own (`Cause.branch`)."""
ENTRY_POINTS = "dtk.detectors"  # Entry point group of a user's own detectors.


class Family(Struct, frozen=True):
    """Traits shared by the causes of a family, described in `families.yaml`. A user's own family has the defaults."""

    title: str
    recorded_for: frozenset[str] = frozenset()
    taken_while: frozenset[str] = frozenset()
    shows_end: bool = True
    outcome_when: dict[Sign, Outcome] = {}
    verified_by: tuple[str, ...] = ()
    chart: Literal["", "calls", "bytes", "times"] = ""
    explained_by: tuple[ExplainedBy, ...] = ()


FAMILIES = convert(read_table(Path(__file__).with_name("families.yaml")), dict[str, Family])


def family(cause: str) -> str:
    """Return the family of a cause: the first word of its id."""
    return cause.partition(".")[0]


def traits(cause: str) -> Family:
    """Return the traits of a cause's family."""
    return FAMILIES.get(family(cause)) or Family(family(cause))


@cache
def built_in() -> tuple[AnyCause, ...]:
    """Return the causes that come with dtk, in the order of branches and then of ids; ValueError if a file defines no
    cause, or one whose id or branch is invalid. Groups in `explained_by` are replaced by the causes that are in them.
    """
    files = sorted(path for path in Path(__file__).parent.glob("*/[!_]*") if path.suffix in (".py", ".yaml"))
    causes = [cause for path in files if (cause := _cause(path)) is not None]
    groups = grouped((group, cause.id) for cause in causes for group in cause.groups)

    def expanded(rule: ExplainedBy) -> ExplainedBy:
        return replace(rule, causes=tuple(id for name in rule.causes for id in groups.get(name, (name,))))

    causes = [replace(cause, explained_by=tuple(map(expanded, cause.explained_by))) for cause in causes]
    order = {branch.id: number for number, branch in enumerate(BRANCHES)}
    return tuple(sorted(causes, key=lambda cause: (order[cause.branch], cause.id)))


@cache
def by_id() -> Mapping[str, AnyCause]:
    """Return the causes that come with dtk by id."""
    return {cause.id: cause for cause in built_in()}


def _cause(path: Path) -> AnyCause | None:
    """Return the cause of a module, or of a table without a module; None for the table of a module."""
    folder, name = path.parent.name, path.stem
    if path.suffix == ".yaml":
        if path.with_suffix(".py").is_file():
            return None
        how = read_table(path)["decided_by"]
        cause = import_module(f"diagnostics.causes.{folder}.{how.pop('module')}").CAUSE_OF(str(path), **how)
    else:
        cause = getattr(import_module(f"diagnostics.causes.{folder}.{name}"), "CAUSE", None)
    if not isinstance(cause, Cause):
        raise ValueError(f"{path}: it must end in CAUSE = declared(...)")
    if cause.id != f"{folder}.{name}":
        raise ValueError(f"{path}: its id is {cause.id!r}, and has to be {folder}.{name}")
    if cause.branch not in {branch.id for branch in BRANCHES}:
        raise ValueError(f"{path}: there is no branch {cause.branch!r} in diagnostics/causes/branches.yaml")
    return cause


class Registry(Struct):
    """The causes that come with dtk, the user's detectors, and load errors."""

    causes: tuple[AnyCause, ...] = ()
    detectors: list[Detector] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def ids(self) -> set[str]:
        """Ids of all registered causes."""
        own = {cause for detector in self.detectors for cause in detector.causes}
        return own | {cause.id for cause in self.causes}


def collect() -> Registry:
    """Collect all causes. A detector that cannot be imported is reported as a coverage problem, not raised."""
    registry = Registry(built_in())
    if _is_any_installed(tuple(sys.path)):
        from importlib.metadata import entry_points

        for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
            registry.detectors.extend(_loaded(entry, registry.problems))
    return registry


@cache
def _is_any_installed(folders: tuple[str, ...]) -> bool:
    """Return whether a package in these folders may provide a detector.

    Then its metadata has the entry points, or is in an archive. Importing `importlib.metadata`, which has the exact
    answer, takes a tenth of the time of a small diagnosis.
    """
    for folder in folders:
        if Path(folder).is_file():
            return True
        with suppress(OSError):
            for name in os.listdir(folder or "."):  # noqa: PTH208 - a path for each name costs more than all of this
                if name.endswith((".dist-info", ".egg-info")):
                    with suppress(OSError), open(f"{folder or '.'}/{name}/entry_points.txt", "rb") as file:  # noqa: PTH123
                        if ENTRY_POINTS.encode() in file.read():
                            return True
    return False


def _loaded(entry: "EntryPoint", problems: list[Problem]) -> Iterator[Detector]:
    """Yield the detectors of an entry point: a detector, a detector class, or a tuple of either."""
    try:
        value: Any = entry.load()
        for item in value if isinstance(value, list | tuple) else (value,):
            detector = item() if isinstance(item, type) else item
            if not callable(getattr(detector, "detect", None)) or not isinstance(detector.name, str):
                raise TypeError("it is not a detector: name, causes and detect(evidence) are expected")
            if not isinstance(detector.causes, tuple) or not all(isinstance(cause, str) for cause in detector.causes):
                raise TypeError("its causes are not a tuple of ids")
            yield detector
    except Exception as error:
        why = shortened(" ".join(f"{type(error).__name__}: {error}".split()))
        problems.append(Problem("detector", f"{entry.name} ({entry.value})", why))
