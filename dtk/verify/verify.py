"""`dtk diagnose RUN --verify-fix`: repeats the run for a few steps, without and with the first remedy."""

import shlex
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from diagnostics.analysis.memory.over_time import TENSORS, WINDOW
from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import read_record
from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job import run_folder
from diagnostics.evidence.limits import Limits
from diagnostics.report.model import Report
from diagnostics.runs.find import FAILED as FAILED_STATES, Details, read_details
from diagnostics.runs.records import number, objects
from dtk.config.fault_checks import FaultConflictError
from dtk.config.trust import check_entries, check_owner, refuse_stored_code
from dtk.errors import DtkError
from dtk.launch.prepare import compose_point, place_point
from dtk.launch.short_run import QUIET, run_short, speed_and_peak
from dtk.verify.proof import Figures, Proof

STEPS = 8  # Minimum steps of a short run: set-up, then a profiler window of `PROFILED` steps.
PROFILED = 4  # Minimum number of steps that shows their variation.
WARM_UP = 2  # Records of steps whose throughput does not count.
_METRICS_BYTES = 256 << 20  # Chosen: about a million records.
BEYOND = 4  # Steps after the one in which the run failed.
OPTION = "--verify-fix"
FAILED = ("hung", "crashed", "oom")


def verify(report: Report, show: Callable[[str], None], *, trust: bool = False) -> Proof:
    """Run with the first remedy that is an override, and compare.

    Raises:
        DtkError: not a dtk run, no remedy that is an override, or the short run could not start.
    """
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
    exposed_ms: dict[int, list[float]] = {}
    for rank in (report.measures.get("overlap") or {}).get("ranks", {}).values():
        for n, step in enumerate(rank["steps"]):
            exposed_ms.setdefault(n, []).append(step["exposed_ms"])
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
