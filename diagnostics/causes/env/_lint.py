"""Causes decided by the linter: variables of NCCL, torch and gloo that are harmful or have no effect."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.environment.job import CONFIGURATION, JobEnvironment, RankLint, Recorded, job_environment
from diagnostics.analysis.environment.situation import Severity
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.lint_texts import lint_text
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import POSSIBLE, SEEN, SUSPECTED, EvidenceItem, Finding, Remedy, Text, confirmed
from diagnostics.contract.formatting import ranks_spoken
from diagnostics.evidence.job.assign_ranks import ALL_RANKS

CONFIDENCE: dict[Severity, float] = {"error": SEEN, "warning": POSSIBLE, "note": SUSPECTED}
"""Confidence by severity; a note is never a root cause."""
_NAMED = 3  # Maximum number of variables that a summary names; the rest are only counted.
_TEXTS = Texts(__file__)


class Setting(Struct, frozen=True):
    """An environment variable that a lint is about, as it was recorded."""

    rank_lint: RankLint
    value: str
    in_configuration: bool
    """Whether `nccl.variables` of a dtk run sets it, so that the fix belongs there."""

    def __str__(self) -> str:
        ranks, text = self.rank_lint.ranks, lint_text(self.rank_lint.lint)
        where = f" (on {ranks_spoken(ranks)})" if ranks else ""
        fix = "" if text.fix_in_message else f"; {text.fix}"
        return f"{self.rank_lint.lint.variable}{'=' + self.value if self.value else ''}{where}: {text.message}{fix}"

    def remedy(self) -> Remedy:
        """Return the remedy: an override if the configuration sets the variable, otherwise a shell command."""
        change, text = self.rank_lint.lint.change, lint_text(self.rank_lint.lint)
        if change is None:
            return Remedy("environment", f"{self.rank_lint.lint.variable}: {text.fix}", text.message)
        value = self.value if change.value is None else change.value
        if self.in_configuration:
            parts = [f"~nccl.variables.{change.unset}"] if change.unset else []
            # Quoted where Hydra's grammar requires it.
            typed = value if re.fullmatch(r"[\w.]+", value) else "'" + value.replace("'", "\\'") + "'"
            parts += [f"nccl.variables.{change.name}={typed}"] if change.name else []
            return Remedy("override", shlex.join(parts), text.message)
        parts = [f"unset {change.unset}"] if change.unset else []
        parts += [f"export {change.name}={shlex.quote(value)}"] if change.name else []
        return Remedy("environment", "; ".join(parts), text.message)


class Settings(Struct, frozen=True):
    """Variables with the same cause, the most severe first."""

    settings: tuple[Setting, ...]
    count: int
    """Number of variables that were checked."""

    def text(self, finding: Finding) -> Text:
        """Return the text of the finding."""
        parts = [str(setting) for setting in self.settings[:_NAMED]]
        summary = ". ".join(parts).replace("?.", "?") + ("" if parts[-1].endswith("?") else ".")
        more = len(self.settings) - _NAMED
        rows, all_settings = ["settings", *(["more"] if more > 0 else [])], len(self.settings)
        text = _TEXTS(finding, rows, shown=summary, more=more, settings=all_settings, count=self.count)
        return replace(text, remedies=tuple(setting.remedy() for setting in self.settings))


def lint_cause(
    file: str,
    *,
    nccl_only: bool = False,
    names: bool = False,
    needs: Sequence[str] = (),
    between_nodes: bool = False,
    from_logs: Callable[[JobEnvironment], Finding | None] = lambda job: None,
) -> Cause[JobEnvironment]:
    """Return a cause, of the module `file`, that is decided by the linter, and `from_logs` from libraries' messages.

    `nccl_only`: it only applies if NCCL moves the data; `names`: it is about variable names, which logs do not show, as
    NCCL only logs those that it knows; `between_nodes`: `needs` only concerns jobs of several nodes. `needs` is a part
    of the node's description without which it is not ruled out if one of the variables that follow is set on all ranks;
    a row of `_lint.yaml` of the same name says so.
    """

    def lacking(record: Recorded) -> str:
        part, *variables = needs or ("",)
        if not any(record.variables.get(ALL_RANKS, {}).get(name) for name in variables):
            return ""
        if between_nodes and record.nnodes is None:
            return "nodes"
        return "" if part in record.hardware or (between_nodes and record.nnodes == 1) else part

    def decide(job: JobEnvironment) -> Iterator[Finding]:
        record = job.recorded
        if nccl_only and record.backend == "gloo":
            yield _TEXTS.ruled_out("gloo")
            return
        logged = from_logs(job)
        if logged is not None:
            yield logged
        if lints := [seen for seen in job.lints if lint_text(seen.lint).cause == cause.id]:
            yield _confirmed(lints, record)
        elif logged is None:
            is_recorded = record.complete or (record.count > 0 and not names)
            if what := lacking(record) or ("" if is_recorded else "environment"):
                yield _TEXTS.undecided(what=_TEXTS.phrase(what))
            else:
                yield _TEXTS.ruled_out("none" if record.count else "no_variable", count=record.count)

    cause = declared(file, job_environment, decide)
    return cause


def _confirmed(lints: list[RankLint], record: Recorded) -> Finding:
    def order(seen: RankLint) -> tuple[float, str, str]:
        return -CONFIDENCE[seen.lint.severity], seen.lint.variable, lint_text(seen.lint).message

    ordered = sorted(lints, key=order)
    settings, items = [], []
    for seen in ordered:
        name = seen.lint.variable
        value, source = record.value(name, seen.ranks), record.source(name, seen.ranks)
        settings.append(Setting(seen, value, record.source(name, ()).file == CONFIGURATION))
        items.append(EvidenceItem("environment", source.file, f"{name}={value}", source.line))
    everywhere = any(not seen.ranks for seen in ordered)
    return confirmed(
        facts=Settings(tuple(settings), record.count),
        confidence=max(CONFIDENCE[seen.lint.severity] for seen in ordered),
        ranks=() if everywhere else tuple(sorted({rank for seen in ordered for rank in seen.ranks})),
        evidence=tuple(items),
    )


CAUSE_OF = lint_cause
