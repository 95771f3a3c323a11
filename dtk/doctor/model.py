"""The types of a check and its result. Imports no torch."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from diagnostics.contract.files import read_table

if TYPE_CHECKING:
    from dtk.doctor.scope import Scope

Status = Literal["ok", "warning", "failure", "not_applicable"]
SEVERITY: tuple[Status, ...] = ("not_applicable", "ok", "warning", "failure")  # From the least to the most worrying.


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy, and its exact command if there is one."""

    what: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check."""

    status: Status
    summary: str
    """One line with the figures; for `not_applicable` the reason."""
    details: tuple[str, ...] = ()
    """Further lines, one per device, pair or interface."""
    remedies: tuple[Remedy, ...] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)
    """Measured values for programs, with units in the names."""
    common: Mapping[str, str] = field(default_factory=dict)
    """Values that must be equal on all nodes of a job: name -> value here."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the machine."""

    name: str
    topic: str
    about: str
    """Short description of what the check covers."""
    run: Callable[["Scope"], Result]
    slow: bool = False
    """Whether the check takes seconds: its limit is `--timeout-s`, and progress is shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An observation within one check; the worst one decides the result."""

    status: Status
    text: str
    remedy: Remedy | None = None


def finding(key: str, /, *, bad: bool = False, **values: Any) -> Finding:
    """Return a finding of `findings.yaml` with its remedy, if any; of a text for `either` severity, `bad` decides.

    `{python}` in a row is this interpreter.
    """
    row = read_table(Path(__file__).with_name("findings.yaml"))[key]
    texts = {part: text.format(python=sys.executable, **values) for part, text in row.items()}
    status: Status = "failure" if bad or "failure" in texts else "warning"
    remedy = Remedy(texts["fix"], texts.get("command", "")) if "fix" in texts else None
    return Finding(status, texts.get("either") or texts[status], remedy)


def not_applicable(reason: str, **more: Any) -> Result:
    """Return the result of a check that does not apply here, with the reason."""
    return Result("not_applicable", reason, **more)


def worst(statuses: Iterable[Status]) -> Status:
    """Return the most severe status, or `not_applicable` if there is none."""
    return max(statuses, key=SEVERITY.index, default="not_applicable")


def judged(
    findings: Iterable[Finding],
    fine: str = "",
    *,
    details: Sequence[str] = (),
    measures: Mapping[str, Any] | None = None,
    common: Mapping[str, str] | None = None,
) -> Result:
    """Combine findings into one result: the most severe first, each remedy once.

    `details` follow the findings that the summary omits; `common` values must be equal on all nodes.
    """
    ranked = sorted(findings, key=lambda finding: -SEVERITY.index(finding.status))
    remedies = tuple(dict.fromkeys(finding.remedy for finding in ranked if finding.remedy is not None))
    return Result(
        status=ranked[0].status if ranked else "ok",
        summary=ranked[0].text if ranked else fine,
        details=(*(f"{finding.status}: {finding.text}" for finding in ranked[1:]), *details),
        remedies=remedies,
        measures=dict(measures or {}),
        common=dict(common or {}),
    )
