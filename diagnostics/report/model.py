"""The report as typed values, from which every form of it (terminal, JSON, Markdown, HTML) is made."""

from typing import Any

from msgspec import Struct, field

from diagnostics.analysis.standing import Standing
from diagnostics.contract.findings import Finding, Outcome, Suspicion
from diagnostics.tree.evaluate import Branch, CutSet

SCHEMA = "dtk.report/1"


class Coverage(Struct, frozen=True):
    """How much of one kind of evidence there was."""

    kind: str
    ranks_present: int
    ranks_expected: int
    problems: tuple[str, ...]
    """What is absent, and what was not read or only in part."""
    notes: tuple[str, ...] = ()
    """What a reader may want to know, and by which nothing is lost."""
    absent: str = ""
    """That of the problems which names ranks without such evidence; not part of the JSON."""


class Decided(Struct, frozen=True):
    """A finding, and the root causes it is a consequence of."""

    finding: Finding
    explained_by: tuple[str, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """Content of report.json (schema: docs/report.schema.json)."""

    source: str
    """What was diagnosed: the path as it was typed."""
    outcome: Outcome
    root_causes: tuple[Finding, ...]
    """The costliest first."""
    findings: tuple[Decided, ...]
    """Every decided cause: confirmed, undecided, ruled out."""
    tree: Branch
    cut_sets: tuple[CutSet, ...] = ()
    measures: dict[str, Any] = field(default_factory=dict)
    coverage: tuple[Coverage, ...] = ()
    titles: dict[str, str] = field(default_factory=dict)
    """Cause -> the cause in words."""
    world_size: int | None = None
    notes: tuple[str, ...] = ()
    """What the reader must know about the evidence as a whole: the job is still running."""

    waiting: Standing | None = None
    """Who waits in what, where only logs tell and no cause is confirmed; in the JSON below `measures`."""
    suspicions: tuple[Suspicion, ...] = ()
    """What is likely there, the likeliest first."""
    standing: str = ""
    """What stands in the place of a cause if no cause is confirmed; not part of the JSON."""
    figures: str = ""
    """What it rests on, as text; likewise."""
    run_folder: str | None = None
    """Where the report's files belong when a run of dtk was diagnosed; not part of the JSON."""

    def title(self, cause: str) -> str:
        """Return the cause in words."""
        return self.titles.get(cause, cause)

    @property
    def healthy(self) -> bool:
        """Nothing was found, and nothing says that the run failed."""
        return self.outcome == "healthy"
