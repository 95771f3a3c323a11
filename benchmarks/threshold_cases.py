"""The jobs about which `thresholds.py` asks: simulated, recorded, and run for it, each with its truth if that is known.

Every kind is a function that takes a folder and yields cases. What it makes there is used again by the next run.
"""

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from benchmarks import diagnosis_accuracy, log_corpus
from benchmarks.hang_accuracy import TRUTH, dtk
from benchmarks.hang_layouts import FAULTS, case
from diagnostics.analysis.memory import job
from diagnostics.causes.registry import built_in
from diagnostics.contract.causes import Example
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.findings import SURE, Finding
from diagnostics.diagnose import diagnose
from diagnostics.evidence import safe_pickle
from diagnostics.evidence.readers import ring, trace
from tests.dist.healthy_ranks import CASES as HEALTHY, WINDOWS
from tests.dist.ranks import run_ranks
from tests.faults.truth import TRUTH as FAULT_TRUTH
from tests.trace_generator import write
from tests.trace_scenarios import SCENARIOS, Scenario
from tests.unit.diagnostics.causes.examples import examples as examples_of_tests
from tests.unit.diagnostics.causes.leftovers import leftovers, scenario_of

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
TRACES = Path(__file__).with_name("trace_truth.json")
MEMORY = {
    "healthy": "",
    "healthy_replicas": "",
    "streamed": "",
    "one_at_a_time": "",
    "root_only": "full_gather",
    "whole_parameters": "full_gather",
    "no_reshard": "no_reshard",
    "gathered_logits": "replicated_gather",
    "gathered_objects": "replicated_gather",
    "state_dict": "full_state_dict",
    "leak": "leak",
    "unshard_all": "full_gather",
    "one_by_one": "full_gather",
}
"""Small training -> the cause of family `memory` that it has."""


class Answer(Struct, frozen=True):
    """What a diagnosis says."""

    outcome: str
    roots: tuple[tuple[str, tuple[int, ...]], ...]
    suspected: tuple[str, ...] = ()
    confirmed: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def graded(self, truth: dict[str, object]) -> bool:
        """Return whether this is right, as `log_corpus` grades it; of an `open` truth only HEALTHY is wrong."""
        roots = [{"cause": cause, "ranks": [*ranks]} for cause, ranks in self.roots]
        grade = log_corpus.grade(truth, {"outcome": self.outcome, "root_causes": roots})
        return grade != "false HEALTHY" if truth.get("open") else grade in ("right", "undecided rightly")


class Case(Struct, frozen=True):
    """A job, how to ask about it, and whether an answer is right; any answer is, if the truth is not known."""

    name: str
    ask: Callable[[], Answer]
    right: Callable[[Answer], bool]


Cases = Iterator[Case]


def simulated_jobs(folder: Path, number: int = 40, seed: int = 2000, fault_text: str = "") -> Cases:
    """Yield the dumps of simulated NCCL jobs with a planted fault, and the logs of those that hang."""
    seeds = (each for each in count(seed) if fault_text in random.Random(each).choice([*FAULTS]))
    for each in islice(seeds, number):
        place = folder / str(each)
        fault, _, ranks, hangs = case(each, place)
        accepted = {f"hang.{cause}" for cause in FAULTS[fault]} if hangs else set()

        def right(answer: Answer, accepted: set[str] = accepted, ranks: frozenset[int] = frozenset(ranks)) -> bool:
            said = answer.confirmed
            return bool(said) == bool(accepted) and all(c in accepted and {*named} == ranks for c, named in said)

        yield Case(f"job {each}", lambda place=place: of_findings(dtk(place)), right)
        place = folder / f"{each}.logs"
        if hangs and case(each, place, as_log=True):
            # Both ranks of a pair, or another kind of call that does not match, may be meant: see `hang_layouts.grade`.
            yield Case(f"log of job {each}", lambda place=place: of_folder(place), anything)


def dumps(folder: Path) -> Cases:
    """Yield the sets of dumps of `hang_accuracy.py`."""
    for name, (causes, ranks) in TRUTH.items() if (SHARED / "flight").is_dir() else ():

        def right(answer: Answer, causes: set[str] = causes, ranks: set[int] = ranks) -> bool:
            said = answer.roots
            return bool(said) == bool(causes) and all(
                cause.removeprefix("hang.") in causes and {*named} == ranks for cause, named in said
            )

        yield Case(name, lambda name=name: of_findings(dtk(SHARED / "flight" / name)), right)


def logs(folder: Path) -> Cases:
    """Yield the folders of logs of `log_corpus.py`."""
    return graded(SHARED / "logs", log_corpus.TRUTH)


def traces(folder: Path) -> Cases:
    """Yield the folders of recorded traces."""
    return graded(SHARED / "traces", TRACES)


def graded(folder: Path, truths: Path) -> Cases:
    """Yield the folders whose truth a file holds."""
    for name, truth in json.loads(truths.read_text()).items():
        if (folder / name).is_dir():
            yield Case(name, lambda name=name: of_folder(folder / name), lambda said, truth=truth: said.graded(truth))


def simulated_traces(folder: Path) -> Cases:
    """Yield simulated jobs; an answer about one is right if it names exactly the planted cause, or none."""
    for number, scenario in enumerate(SCENARIOS):
        write(scenario.build(), folder / str(number))

        def right(answer: Answer, item: Scenario = scenario) -> bool:
            return {*answer.roots} == ({(item.cause, tuple(item.ranks))} if item.cause else set())

        yield Case(scenario.name, lambda place=folder / str(number): of_folder(place), right)


def examples(folder: Path) -> Cases:
    """Yield the examples of all causes, and the evidence that resembles one and must not confirm the cause."""
    for cause in built_in():
        example = cause.example
        if example is None or example.kind == "fault":
            continue
        ranks = scenario_of(cause.id).ranks if example.kind == "timeline" else example.ranks
        place = laid(folder / cause.id, cause.id, example)
        yield Case(cause.id, lambda place=place: of_folder(place), first_is(cause.id, ranks))
        if example.counter:
            place = laid(folder / f"not_{cause.id}", cause.id, replace(example, text=example.counter))
            yield Case(f"not {cause.id}", lambda place=place: of_folder(place), lacks(cause.id))
    for name, own in examples_of_tests().items():
        place = folder / f"small_{name}"
        own.write(place)
        yield Case(f"small {name}", lambda place=place: of_folder(place), first_is(name, own.ranks))


def laid(place: Path, cause: str, example: Example) -> Path:
    """Write the files of an example."""
    for name, content in leftovers(cause, example).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)
    return place


def printed_losses(folder: Path, number: int = 60) -> Cases:
    """Yield logs of simulated losses: some learn, others jump, climb or overflow, or only look like it."""
    for seed in range(number):
        draw = random.Random(seed)
        event, cause = draw.choice([*EVENTS.items()])
        place = folder / str(seed)
        place.mkdir(parents=True, exist_ok=True)
        (place / "train.log").write_text("\n".join(loss_lines(draw, event)) + "\n")

        def right(answer: Answer, cause: str = cause) -> bool:
            return {name for name, _ in answer.roots} == ({cause} if cause else set())

        yield Case(f"{event} {seed}", lambda place=place: of_folder(place), right)


EVENTS = {
    "learns": "",
    "a spike": "",
    "other data": "",
    "a penalty that grows": "",
    "a scale that is searched": "",
    "a jump": "numeric.spike",
    "a climb": "numeric.spike",
    "a scale that falls": "numeric.overflow",
}
"""What happens to a loss -> the cause that must be named."""
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"


def loss_lines(draw: random.Random, event: str) -> Iterator[str]:
    """Yield the lines of a log: the loss falls exponentially to a part of the first one, with noise of each batch."""
    count, first, last = draw.randint(80, 400), draw.uniform(2.5, 11.0), draw.uniform(0.3, 0.8)
    if event == "a penalty that grows":
        first, last = draw.uniform(0.005, 0.2), draw.uniform(3.0, 12.0)
    noise, speed, at = draw.choice([0.005, 0.02, 0.05]), draw.uniform(2.0, 8.0), draw.randint(count // 2, count - 30)
    factor = {"a jump": draw.uniform(1.8, 6.0), "other data": draw.uniform(1.05, 1.35), "a spike": draw.uniform(2, 5)}
    length = draw.randint(1, 5) if event == "a spike" else count
    top, norm, steep = draw.uniform(2.3, 5.0), draw.uniform(0.3, 2.0), draw.uniform(4, 40)
    for step in range(1, count + 1):
        level, is_after = last + (1 - last) * math.exp(-speed * step / count), at <= step < at + length
        if event == "a climb" and step >= at:
            level += (top - level) * min(1.0, 2 * (step - at) / (count - at))
        level *= factor.get(event, 1.0) if is_after else 1.0
        norms = norm * (steep if event in ("a jump", "a spike") and is_after else 1.0) * draw.uniform(0.8, 1.3)
        if event == "a scale that is searched" and step <= 4:
            yield OVERFLOW.format(2 ** (17 - step), 2 ** (16 - step))
        if event == "a scale that falls" and step > count - 14:
            scale = max(1, 2 ** (11 - (step - count + 13)))
            yield OVERFLOW.format(scale, max(1, scale // 2))
        else:
            yield f"step {step} loss {first * level * (1 + draw.gauss(0, noise)):.4f} grad_norm {norms:.3f}"


def memory(folder: Path) -> Cases:
    """Yield small trainings on two ranks that waste memory in known ways."""
    if not folder.is_dir():
        run_ranks("tests.dist.memory_ranks:train", 2, str(folder))
    for name, cause in MEMORY.items():

        def right(answer: Answer, cause: str = cause) -> bool:
            said = {name for name, _ in answer.confirmed if name.startswith("memory.")}
            return said == ({f"memory.{cause}"} if cause else set())

        yield Case(name, lambda name=name: of_folder(folder / name), right)


def healthy(folder: Path) -> Cases:
    """Yield small trainings with nothing wrong: none confirms a cause of memory."""
    if not folder.is_dir():
        two = tuple(name for name in HEALTHY if name != "hsdp")
        run_ranks("tests.dist.healthy_ranks:run", 2, str(folder), two)
        run_ranks("tests.dist.healthy_ranks:run", 4, str(folder), ("hsdp",))
    for name in sorted(f"{name}-{kind}" for name in HEALTHY for kind in WINDOWS):
        yield Case(name, lambda name=name: of_folder(folder / name), lacks("memory."))


def faults(folder: Path) -> Cases:
    """Yield a run of each fault of the library, ten minutes for all."""
    for name, truth in FAULT_TRUTH.items():
        place = folder / name
        if not place.is_dir():
            place.mkdir(parents=True)
            with suppress(SystemExit):
                diagnosis_accuracy.run([f"fault={name}", "data.max_bytes=300000"], place)
        for status in place.glob("*/status.json"):

            def right(
                answer: Answer, causes: tuple[str, ...] = truth.causes, ranks: tuple[int, ...] = truth.ranks
            ) -> bool:
                return answer.roots[:1] == () if not causes else any(answer.roots[:1] == ((c, ranks),) for c in causes)

            yield Case(name, lambda run=status.parent: of_folder(run), right)


def unit_tests(folder: Path) -> Cases:
    """Yield the folders that unit tests of `diagnostics` diagnose: what each threshold separates, on both sides."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.kept_evidence"]
        subprocess.run([*command, "tests/unit/diagnostics"], cwd=ROOT, env={**os.environ, "KEEP_EVIDENCE": str(folder)})
    for place in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        yield Case(place.name, lambda place=place: of_folder(place), anything)


_READ: dict[object, Any] = {}


def remember() -> None:
    """Read each dump, ring and trace only once: half of the time of a diagnosis would go there."""

    def once(module: ModuleType, name: str) -> None:
        read = getattr(module, name)

        def again(source: object, *others: Any) -> Any:
            key = (name, source, *(other for other in others if isinstance(other, int | str)))
            if key not in _READ:
                _READ[key] = read(source, *others)
            return [*_READ[key]] if isinstance(_READ[key], list) else _READ[key]

        setattr(module, name, again)

    for module, name in ((safe_pickle, "load_plain"), (ring, "parse"), (trace, "read"), (job, "read_marks")):
        once(module, name)


def forget() -> None:
    """Read all of it again."""
    _READ.clear()


KINDS: dict[str, Callable[[Path], Cases]] = {
    "simulated NCCL jobs": simulated_jobs,
    "dumps": dumps,
    "logs": logs,
    "recorded traces": traces,
    "simulated traces": simulated_traces,
    "examples of causes": examples,
    "printed losses": printed_losses,
    "memory trainings": memory,
    "healthy trainings": healthy,
    "faults": faults,
    "evidence of unit tests": unit_tests,
}


def anything(answer: Answer) -> bool:
    """Accept an answer, as the truth is not known or has several forms."""
    return True


def first_is(cause: str, ranks: tuple[int, ...]) -> Callable[[Answer], bool]:
    """Return whether a cause and its ranks are named first."""
    return lambda answer: answer.roots[:1] == ((cause, ranks),)


def lacks(prefix: str) -> Callable[[Answer], bool]:
    """Return whether no confirmed cause begins so."""
    return lambda answer: not any(cause.startswith(prefix) for cause, _ in answer.confirmed)


def of_findings(findings: Iterable[Finding]) -> Answer:
    """Return the answer of confirmed findings of hangs, without the report on them."""
    every = sorted((each.cause, each.ranks, each.confidence >= SURE) for each in findings)
    sure = tuple((cause, ranks) for cause, ranks, is_sure in every if is_sure)
    return Answer("hung" if every else "undecided", tuple((cause, ranks) for cause, ranks, _ in every), (), sure)


def of_folder(folder: Path) -> Answer:
    """Return the answer of a diagnosis."""
    try:
        report = diagnose(folder)
    except DiagnosticsError as error:  # It holds several jobs.
        return Answer(f"unusable: {error}", ())
    return Answer(
        report.outcome,
        tuple((each.cause, each.ranks) for each in report.root_causes),
        tuple(each.cause for each in report.suspicions),
        tuple(sorted((d.finding.cause, d.finding.ranks) for d in report.findings if d.finding.status == "confirmed")),
    )
