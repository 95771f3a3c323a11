"""Which thresholds decide a verdict: each is set to other values, and the answers are compared with those of today.

python benchmarks/thresholds.py [NAME ...] [--dumps FOLDER] [--logs FOLDER] [--layouts NUMBER] [--fault TEXT]
python benchmarks/thresholds.py overlap step_profile --layouts 0 --simulated-traces [--traces FOLDER]

The cases: simulated NCCL jobs with a planted fault (`hang_layouts.py`), sets of flight-recorder dumps, folders of logs,
simulated traces with a planted cause (tests/trace_scenarios.py), folders of traces.
A row says for each value how many answers (confirmed causes, their ranks, and whether they may be root causes) differ,
how many of these were right and are wrong now, and the other way round. NAME chooses among the thresholds.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.hang_accuracy import TRUTH, dtk
from benchmarks.hang_layouts import FAULTS, case
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.findings import SURE, Finding
from diagnostics.diagnose import diagnose
from tests.trace_generator import write
from tests.trace_scenarios import SCENARIOS, Scenario

THRESHOLDS: dict[str, tuple[float, ...]] = {
    "causes.hang.straggler.LATE_S": (0.05, 0.1, 0.5, 1.0, 2.0),
    "causes.hang.straggler.TIMES": (1, 2, 5, 10),
    "causes.hang.straggler.ONCE_S": (2.0, 5.0, 20.0, 60.0),
    "causes.hang.straggler.SHARE_OF_TIME": (0.02, 0.1, 0.5, 0.8),
    "causes.hang.straggler.SHARE_OF_LATE": (0.5, 0.65, 0.9, 0.99),
    "causes.hang.straggler.NEVER_BACK": (1, 2, 5, 10),
    "analysis.divergence.evidence_terms.UNCLEAR": (0.0, 0.25, 1.0, 1.5),
    "analysis.divergence.evidence_terms.UNCLEAR_WITHOUT_CALLERS": (0.5, 1.0, 2.0, 3.0),
    "analysis.divergence.explanation._ROUNDS_OF_ONE_CALL": (1, 3, 5),
    "analysis.divergence.sequences.LONGEST": (64, 256, 1024),
    "analysis.divergence.sequences.MOST_CALLS": (7, 31, 127),
    "analysis.divergence.whole_programs.LONGEST": (100, 400, 1600),
    "analysis.divergence.whole_programs.MOST_PROGRAMS": (3, 5, 17),
    "analysis.histories.align.LEAST_S": (0.1, 0.25, 1.0, 2.0),
    "analysis.stall.departure._ROUNDS": (1, 3, 4),
    "analysis.stall.watchdog_lines._SLACK_S": (10, 30, 120, 600),
    "analysis.stall.watchdog_lines.SCALAR": (1, 4, 64, 256),
    "analysis.stall.symptoms._NEAR": (0.9, 0.95, 0.999),
    "analysis.stall.job_state.STALL_S": (2.0, 5.0, 20.0, 60.0),
    "causes.hang.rank_exited.OPEN": (0.5, 0.8, 0.95),
    "causes.hang.timeout_budget._SHARE": (0.5, 0.7, 0.9, 0.95),
    "causes.suspicions._CLOSE": (0.02, 0.05, 0.2, 0.5),
    "analysis.step_profile.account.MOST": (0.05, 0.15, 0.2, 0.3),
    "analysis.step_profile.gaps.DEVICE_NS": (500, 1_000, 5_000, 10_000),
    "analysis.step_profile.gaps._LAUNCH_NS": (5_000, 10_000, 30_000, 60_000),
    "analysis.step_profile.gaps._NEAR_NS": (5_000, 10_000, 40_000, 80_000),
    "analysis.step_profile.gaps._MOST": (0.3, 0.4, 0.6, 0.8),
    "analysis.step_profile.gaps._PAUSE_SHARE": (0.5, 0.6, 0.8, 0.9),
    "analysis.step_profile.gaps._BREAK": (3.0, 5.0, 12.0, 20.0),
    "analysis.step_profile.gaps.PAUSE_NS": (200_000, 500_000, 2_000_000, 5_000_000),
    "analysis.step_profile.overview.SHARE": (0.01, 0.03, 0.05, 0.1),
    "analysis.step_profile.profile._AT_ONCE": (0.02, 0.05, 0.2, 0.4),
    "analysis.step_profile.reductions.MANY": (4, 6, 12, 20),
    "analysis.step_profile.reductions.MOST": (0.6, 0.7, 0.9, 0.95),
    "analysis.step_profile.skew._MOST": (0.3, 0.4, 0.6, 0.8),
    "analysis.step_profile.skew._CLOSE": (0.005, 0.01, 0.05, 0.1),
    "causes.overlap._idle._OUTLIER": (1.5, 2.0, 5.0, 10.0),
    "causes.overlap.accumulation_sync._REPEATED": (0.2, 0.35, 0.7, 0.9),
    "causes.overlap.communication_bound._NEAR_BOUND": (0.5, 0.6, 0.8, 0.9),
    "causes.overlap.communication_bound._BEYOND": (1.1, 1.25, 2.0, 3.0),
    "causes.overlap.communication_bound._FILLS": (0.3, 0.4, 0.6, 0.7),
    "causes.overlap.host_bound._HOST_SHARE": (0.05, 0.1, 0.2, 0.3),
    "causes.overlap.no_prefetch._NOT_AHEAD": (0.05, 0.1, 0.25, 0.4),
    "causes.overlap.root_only_wrapping._FEW": (1, 2, 4, 6),
    "causes.overlap.same_stream._SHARE": (0.2, 0.35, 0.7, 0.9),
    "causes.overlap.single_bucket._LATE": (0.5, 0.6, 0.85, 0.95),
    "causes.overlap.skew._MOST": (0.4, 0.5, 0.7, 0.8),
    "causes.overlap.skew._STANDS_OUT": (1.25, 1.5, 3.0, 4.0),
    "causes.overlap.skew._WANDERING": (0.02, 0.03, 0.08, 0.15),
    "causes.overlap.skew._COMPARABLE": (0.25, 0.35, 0.7, 0.9),
    "causes.overlap.small_units._BRIEF_NS": (30_000, 50_000, 200_000, 400_000),
}
"""Threshold below `diagnostics` -> other values to try."""
Answer = tuple[tuple[str, tuple[int, ...], bool], ...]
Ask = Callable[[], Answer]


def layouts(
    number: int, seed: int, fault_text: str, folder: Path
) -> Iterator[tuple[str, Ask, Callable[[Answer], bool]]]:
    """Yield simulated jobs, and whether an answer about one is right: names nobody else, and an accepted cause."""
    seeds = (each for each in count(seed) if fault_text in random.Random(each).choice([*FAULTS]))
    for each in islice(seeds, number):
        place = folder / str(each)
        fault, _, ranks, hangs = case(each, place)
        accepted = {f"hang.{cause}" for cause in FAULTS[fault]} if hangs else set()

        def right(answer: Answer, accepted: set[str] = accepted, ranks: frozenset[int] = frozenset(ranks)) -> bool:
            sure = [(cause, set(named)) for cause, named, is_sure in answer if is_sure]
            return bool(sure) == bool(accepted) and all(c in accepted and named == ranks for c, named in sure)

        yield f"layout {each}", lambda place=place: of_findings(dtk(place)), right
        place = folder / f"{each}.logs"
        if hangs and case(each, place, as_log=True):
            # Both ranks of a pair, or another kind of call that does not match, may be meant: see `hang_layouts.grade`.
            yield f"log of layout {each}", lambda place=place: of_report(place), lambda _: True


def dumps(folder: Path) -> Iterator[tuple[str, Ask, Callable[[Answer], bool]]]:
    """Yield the sets of dumps of `hang_accuracy.py`."""
    for name, (causes, ranks) in TRUTH.items():

        def right(answer: Answer, causes: set[str] = causes, ranks: set[int] = ranks) -> bool:
            return bool(answer) == bool(causes) and all(
                cause.removeprefix("hang.") in causes and set(named) == ranks for cause, named, _ in answer
            )

        yield name, lambda name=name: of_findings(dtk(folder / name)), right


def folders(folder: Path) -> Iterator[tuple[str, Ask, Callable[[Answer], bool]]]:
    """Yield folders of logs or of traces; a different answer about one counts as neither right nor wrong."""
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield place.name, lambda place=place: of_report(place), lambda _: True


def simulated_traces(folder: Path) -> Iterator[tuple[str, Ask, Callable[[Answer], bool]]]:
    """Yield simulated jobs; an answer about one is right if it names exactly the planted cause, or none."""
    for number, one in enumerate(SCENARIOS):
        write(one.build(), folder / f"traces_{number}")

        def right(answer: Answer, one: Scenario = one) -> bool:
            planted = {(one.cause, tuple(one.ranks))} if one.cause else set()
            return {(cause, ranks) for cause, ranks, _ in answer} == planted

        yield one.name, lambda place=folder / f"traces_{number}": of_report(place), right


def of_findings(found: Iterable[Finding]) -> Answer:
    """Return causes and ranks of confirmed findings, and whether they may be root causes."""
    return tuple(sorted((each.cause, each.ranks, each.confidence >= SURE) for each in found))


def of_report(folder: Path) -> Answer:
    """Return the root causes of a diagnosis, and what it suspects."""
    try:
        report = diagnose(folder)
    except DiagnosticsError:  # It holds several jobs.
        return ()
    return of_findings(report.root_causes) + tuple((each.cause, each.ranks, False) for each in report.suspicions)


@contextmanager
def changed(name: str, value: float) -> Iterator[None]:
    """Give a threshold another value, also in the modules that have imported it."""
    module, _, constant = f"diagnostics.{name}".rpartition(".")
    before = getattr(import_module(module), constant)
    holders = [each for each in [*sys.modules.values()] if getattr(each, "__dict__", {}).get(constant) is before]
    own = [each for each in holders if each.__name__.startswith("diagnostics.")]
    for each in own:
        setattr(each, constant, value)
    try:
        yield
    finally:
        for each in own:
            setattr(each, constant, before)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only thresholds whose name contains it")
    parser.add_argument("--dumps", type=Path)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--simulated-traces", action="store_true")
    parser.add_argument("--layouts", type=int, default=60, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=2000)
    parser.add_argument("--fault", default="", metavar="TEXT", help="only simulated jobs whose fault contains it")
    options = parser.parse_args()
    chosen = [name for name in THRESHOLDS if not options.names or any(part in name for part in options.names)]
    with tempfile.TemporaryDirectory() as name:
        cases = [*layouts(options.layouts, options.seed, options.fault, Path(name))]
        cases += [*dumps(options.dumps)] if options.dumps else []
        for each in (options.logs, options.traces):
            cases += [*folders(each)] if each else []
        cases += [*simulated_traces(Path(name))] if options.simulated_traces else []
        today = {label: ask() for label, ask, _ in cases}
        known = sum(right(today[label]) for label, _, right in cases)
        print(f"{len(cases)} cases, {known} right or without a truth\n")
        print(f"| threshold | value | other answers | now wrong | now right |\n|{'---|' * 5}")
        for threshold in chosen:
            for value in THRESHOLDS[threshold]:
                with changed(threshold, value):
                    others = [
                        (right, today[label], now) for label, ask, right in cases if (now := ask()) != today[label]
                    ]
                worse = sum(right(was) and not right(now) for right, was, now in others)
                better = sum(right(now) and not right(was) for right, was, now in others)
                print(f"| {threshold} | {value:g} | {len(others)} | {worse} | {better} |", flush=True)


if __name__ == "__main__":
    main()
