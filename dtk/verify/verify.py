"""`dtk diagnose RUN --verify-fix`: repeats the run for a few steps, without and with the first remedy, and compares."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from diagnostics.analysis.memory.over_time import TENSORS, WINDOW
from diagnostics.causes.registry import by_id, traits
from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import read_record
from diagnostics.contract.findings import Finding, Remedy, text_of
from diagnostics.contract.grouping import grouped
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job import run_folder
from diagnostics.evidence.limits import Limits
from diagnostics.report import document as doc
from diagnostics.report.model import Report
from diagnostics.report.terminal import render
from diagnostics.runs.find import FAILED as FAILED_STATES, Details, read_details
from diagnostics.runs.records import number, objects
from dtk.config.fault_checks import FaultConflictError
from dtk.config.trust import check_entries, check_owner, refuse_stored_code
from dtk.errors import DtkError
from dtk.launch.prepare import compose_point, place_point
from dtk.launch.short_run import QUIET, run_short, speed_and_peak

STEPS = 8  # Minimum steps of a short run: set-up, then a profiler window of `PROFILED` steps.
PROFILED = 4  # Minimum number of steps that shows their variation.
WARM_UP = 2  # Records of steps whose throughput does not count.
_METRICS_BYTES = 256 << 20  # Chosen: about a million records.
BEYOND = 4  # Steps after the one in which the run failed.
OPTION = "--verify-fix"
FAILED = ("hung", "crashed", "oom")
MEMORY_NOISE = 0.02  # Fraction of the peak before: peaks of two runs of the same job differ by less.


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of two runs."""

    name: str
    unit: str
    before: float
    after: float
    noise: float
    """Noise between the steps of one run: the larger of the median absolute deviations of both runs."""
    less_is_better: bool = True

    @property
    def gain(self) -> float:
        """Improvement; negative if the figure became worse."""
        return self.before - self.after if self.less_is_better else self.after - self.before

    def __str__(self) -> str:
        """`exposed communication 27.0 -> 41.0 ms per step, noise 6.0`"""
        return f"{self.name} {self.before:,.1f} -> {self.after:,.1f}{self.unit}, noise {self.noise:,.1f}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run to compare; None if not measured."""

    run: str
    state: str
    """State of the run: `finished`, `hung`, ..."""
    at: str
    """` in step 4`, where it failed, or ` after step 3`, the last that it finished; may be empty."""
    causes: tuple[str, ...]
    """Root causes in its diagnosis."""
    tokens_per_s: float | None
    peak_memory_bytes: float | None
    """Peak of the rank with the most memory."""
    terms: tuple[str, int | None] = ("", None)
    """Requested record level and steps: throughput under others is not comparable."""
    exposed_steps_ms: tuple[float, ...] = ()
    """Exposed communication of each profiled step, mean over ranks."""
    tokens_steps_per_s: tuple[float, ...] = ()
    """Tokens/s of each record of metrics.jsonl after the first ones."""
    tensors_bytes: float | None = None
    """Peak of tensors on the rank with the most, as measured by the memory detector."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Figures before and after a remedy."""

    cause: str
    remedy: Remedy
    before: Figures
    after: Figures

    @property
    def is_cause_removed(self) -> bool:
        """Whether the run with the remedy finished, and the cause is not found in it."""
        return self.after.state == "finished" and self.cause not in self.after.causes

    @property
    def changes(self) -> list[Change]:
        """Changes of the figures that the cause affects, if both runs have them."""
        before, after = self.before, self.after
        tokens = before.tokens_steps_per_s, after.tokens_steps_per_s
        exposed = before.exposed_steps_ms, after.exposed_steps_ms
        changes = {
            "exposed": of_steps("exposed communication", " ms per step", *exposed),
            "tokens": None if _not_comparable(self) else of_steps("tokens/s", "", *tokens, less_is_better=False),
            "memory": of_peak(before.tensors_bytes, after.tensors_bytes)
            or of_peak(before.peak_memory_bytes, after.peak_memory_bytes),
        }
        return [change for name in figures_of(self.cause) if (change := changes[name]) is not None]

    @property
    def holds(self) -> bool:
        """Whether the cause is no longer found and the figures that it affects, if any, improved."""
        if not self.is_cause_removed:
            return False
        failed = self.before.state != "finished"
        return failed or not figures_of(self.cause) or improved(self.changes)

    @property
    def verdict(self) -> str:
        """The result in words."""
        if self.holds:
            return "the fix holds"
        if not self.is_cause_removed:
            return "the fix does not hold"
        figures = "; ".join(map(str, self.changes)) or "it was not measured in both runs"
        return f"the cause is gone, but no gain was measured here ({figures})"


def of_steps(
    name: str, unit: str, before: Sequence[float], after: Sequence[float], *, less_is_better: bool = True
) -> Change | None:
    """Return the change between the medians of the steps of both runs, or None if either has no steps."""
    if not before or not after:
        return None
    noise = max(_deviation(before), _deviation(after))
    return Change(name, unit, median(before), median(after), noise, less_is_better)


def of_peak(before: float | None, after: float | None) -> Change | None:
    """Return the change of peak memory (bytes) in MiB; None if not measured."""
    if before is None or after is None:
        return None
    return Change("peak memory", " MiB", before / 2**20, after / 2**20, MEMORY_NOISE * before / 2**20)


def figures_of(cause: str) -> tuple[str, ...]:
    """Return the figures that show whether the remedy of a cause helps: of `exposed`, `tokens`, `memory`."""
    own = registered.verified_by if (registered := by_id().get(cause)) is not None else None
    return tuple(traits(cause).verified_by if own is None else own)


def improved(changes: Sequence[Change]) -> bool:
    """Return whether at least one figure improved beyond its noise, and none became worse."""
    better = any(change.gain > change.noise for change in changes)
    return better and not any(-change.gain > change.noise for change in changes)


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values)


def table(proof: Proof) -> str:
    """Return figures before and after as text, the verdict first."""
    runs, why = (proof.before, proof.after), _not_comparable(proof)
    exposed = [median(run.exposed_steps_ms) if run.exposed_steps_ms else None for run in runs]
    rows: list[tuple[str, ...]] = [
        ("", "before", "after"),
        ("ended", *(run.state + run.at for run in runs)),
        ("causes found", *(", ".join(run.causes) or "none" for run in runs)),
        ("tokens/s", *(["not comparable"] * 2 if why else [_text(run.tokens_per_s, 1, "") for run in runs])),
        ("peak memory per rank", *(_text(run.peak_memory_bytes, 2**20, " MiB") for run in runs)),
        ("exposed communication", *(_text(time_ms, 1, " ms per step") for time_ms in exposed)),
    ]
    if any(run.tensors_bytes for run in runs):
        rows.insert(-1, ("peak of tensors per rank", *(_text(run.tensors_bytes, 2**20, " MiB") for run in runs)))
    heading = f"{proof.verdict}: {proof.cause} with {proof.remedy.change}"
    fields = [doc.Field("because", why)] if why else []
    fields += [doc.Field("run before", proof.before.run), doc.Field("run after", proof.after.run)]
    return render(doc.Document("", heading, (doc.table(rows), doc.Fields(tuple(fields)))), columns=None, colour=False)


def _not_comparable(proof: Proof) -> str:
    """Return why throughput is not comparable; empty if it is."""
    terms = {"before": proof.before.terms, "after": proof.after.terms}
    unknown = [name for name, (level, _) in terms.items() if not level]
    if unknown:
        return f"the run {unknown[0]} has no readable configuration"
    if proof.before.terms == proof.after.terms:
        return ""
    described = [f"{name} {steps} steps with record={level}" for name, (level, steps) in terms.items()]
    return f"{', '.join(described)}, and recording takes time"


def _text(value: float | None, unit: float, name: str) -> str:
    return "not measured" if value is None else f"{value / unit:,.1f}{name}"


def verify(report: Report, show: Callable[[str], None], *, trust: bool = False) -> Proof:
    """Run with the first remedy that is an override, and compare; DtkError if there is none, or it could not start."""
    if report.run_folder is None:
        raise DtkError("--verify-fix reruns the job, and this is not a dtk run", fix="make the change by hand")
    if not report.root_causes:
        raise DtkError("there is nothing to verify", "no cause was found")
    remedies = ((finding, remedy) for finding in report.root_causes for remedy in text_of(finding).remedies)
    overrides = [(finding, remedy) for finding, remedy in remedies if remedy.kind == "override"]
    if not overrides:
        raise DtkError("no remedy of this report is an override", "each is a change of code or environment", "make it")
    finding, remedy = overrides[0]
    paths = RunPaths(Path(report.run_folder))
    check_owner(paths.root, OPTION, trust=trust)
    check_entries(paths.root, OPTION, trust=trust)
    short = _short(finding, paths)
    if report.outcome in FAILED:
        before = _figures(paths.root, report)
    else:
        show("the run as it was, for a few steps")
        before = _run(short, paths)
    show(f"the run with {remedy.change}")
    changed = [*short, *shlex.split(remedy.change)]
    try:
        after = _run(changed, paths)
    except FaultConflictError as conflict:
        show(f"without the fault, which cannot happen with this change ({conflict.what})")
        after = _run([*changed, "fault=none"], paths)
    return Proof(finding.cause, remedy, before, after)


def _short(finding: Finding, paths: RunPaths) -> list[str]:
    """Return the overrides that make a run short, measured and free of side effects."""
    status = read_details(paths.root).status
    failed_in = finding.step or (status.failure.step if status and status.failure else None) or 0
    record = ("record=full", "record.profile_start=3", f"record.profile_steps={PROFILED}")
    return [f"train.steps={max(STEPS, int(failed_in) + BEYOND)}", *record, *QUIET]


def _run(overrides: list[str], paths: RunPaths) -> Figures:
    """One short run to its end; its output stays in its run folder. Raises FaultConflictError before it is started."""
    point = compose_point(overrides, None, paths.root, trust=True)
    plain = point.composed.plain
    refuse_stored_code(plain, plain, (), OPTION)  # A remedy repeats what the folder says.
    place_point(point)
    folder = run_short(["--trust", "--rerun", str(paths.root), *overrides], paths.verify)
    return _figures(folder, diagnose(folder))


def _figures(run: Path, report: Report) -> Figures:
    details = read_details(run)
    tokens_per_s, peak_bytes = speed_and_peak(details)
    try:
        records = objects(read_record(RunPaths(run).metrics, _METRICS_BYTES).split(b"\n"))
        speeds = [value for record in records if (value := number(record.get("tokens_per_s"))) is not None]
    except OSError:
        speeds = []
    memory = (report.measures.get("memory") or {}).get("ranks", {}).values()
    of_tensors = [rank for rank in memory if rank.get("curve_of") in (TENSORS, WINDOW)]
    peaks = [rank["peak_bytes"] for rank in of_tensors if "peak_bytes" in rank]
    ranks = (report.measures.get("overlap") or {}).get("ranks", {}).values()
    exposed_ms = grouped((n, step["exposed_ms"]) for rank in ranks for n, step in enumerate(rank["steps"]))
    return Figures(
        run=str(run),
        state=details.run.state,
        at=_step_of_end(details, report),
        causes=tuple(finding.cause for finding in report.root_causes),
        tokens_per_s=tokens_per_s,
        peak_memory_bytes=peak_bytes,
        terms=_terms(run),
        exposed_steps_ms=tuple(fmean(values) for _, values in sorted(exposed_ms.items())),
        tokens_steps_per_s=tuple(speeds[WARM_UP:]),
        tensors_bytes=max(peaks, default=None),
    )


def _step_of_end(details: Details, report: Report) -> str:
    """As the diagnosis counts: step 4 that it failed in was never finished, step 3 that it ended after was."""
    run, status = details.run, details.status
    if run.state in FAILED_STATES:
        steps = [finding.step for finding in report.root_causes]
        steps.append(status.failure.step if status and status.failure else None)
        failed_in = next((step for step in steps if step is not None), None)
        if failed_in is not None:
            return f" in step {failed_in}"
    return "" if run.step is None else f" after step {run.step}"


def _terms(run: Path) -> tuple[str, int | None]:
    """Return the run's configured record level and number of steps; unknown if the configuration is damaged."""
    evidence = run_folder.read(run, Limits(), [])
    steps = evidence.get("train.steps")
    return str(evidence.get("record.level", "")), steps if isinstance(steps, int) else None
