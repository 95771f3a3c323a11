"""The report as typed values, from which all its forms (terminal, JSON, Markdown, HTML) are made."""

from typing import Any

from msgspec import Struct, field

from diagnostics.analysis.symptoms.state import Symptoms
from diagnostics.contract.findings import Finding, Outcome, Suspicion
from diagnostics.tree.model import Branch, CutSet

SCHEMA = "dtk.report/1"


class Coverage(Struct, frozen=True):
    """Availability of one kind of evidence."""

    kind: str
    ranks_present: int
    ranks_expected: int
    problems: tuple[str, ...]
    """What is missing, and what was not read or only partly."""
    notes: tuple[str, ...] = ()
    """Information for the reader that does not mean missing evidence."""
    absent: str = ""
    """The item of `problems` that names the ranks without such evidence; not part of the JSON."""


class Decided(Struct, frozen=True):
    """A finding, and the root causes of which it is a consequence."""

    finding: Finding
    explained_by: tuple[str, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """Content of report.json (schema: docs/report.schema.json)."""

    source: str
    """What was diagnosed: the path as the user typed it."""
    outcome: Outcome
    root_causes: tuple[Finding, ...]
    """Root causes, the most costly first."""
    findings: tuple[Decided, ...]
    """Every decided cause: confirmed, undecided, ruled out."""
    tree: Branch
    cut_sets: tuple[CutSet, ...] = ()
    measures: dict[str, Any] = field(default_factory=dict)
    coverage: tuple[Coverage, ...] = ()
    titles: dict[str, str] = field(default_factory=dict)
    """Cause id -> title."""
    world_size: int | None = None
    notes: tuple[str, ...] = ()
    """Notes on the evidence as a whole, such as that the job is still running."""

    waiting: Symptoms | None = None
    """Who waits in which call, if only logs show it and no cause is confirmed; in the JSON under `measures`."""
    suspicions: tuple[Suspicion, ...] = ()
    """Likely causes in that case, the most likely first."""
    statement: str = ""
    """Statement shown instead of a cause if no cause is confirmed; not part of the JSON."""
    stated: str = ""
    """Id of the undecided cause that `statement` is about, if any; not part of the JSON."""
    figures: str = ""
    """Figures behind `statement`, as text; not part of the JSON."""
    asks: str = ""
    """What a log that shows no problem leaves open (`without_cause`); not part of the JSON."""
    run_folder: str | None = None
    """Folder for the report's files if a dtk run was diagnosed; not part of the JSON."""

    def title(self, cause: str) -> str:
        """Return the title of a cause."""
        return self.titles.get(cause, cause)

    @property
    def healthy(self) -> bool:
        """Whether nothing was found and nothing indicates that the run failed."""
        return self.outcome == "healthy"
