"""The steps in CONTRIBUTING.md, followed in a copy of the repository's packages, lead to something that works."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, environment
from tests.warm_python import run_module

TOY_READER = '''
"""Lines of the toy watcher: one fact a file."""

from diagnostics.evidence.limits import whole
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.reader import Contents, Reader, Source


def recognise(head: bytes) -> bool:
    """Whether a file that begins so was written by the toy watcher."""
    return head.startswith(b"toy watcher v1")


def read(source: Source) -> Contents:
    """Return the one fact in the file."""
    lines = whole(source.path, source.limits).decode().splitlines()
    if len(lines) < 2:
        raise ValueError("it ends after its first line")
    return Contents(source.file, facts=[LogFact("toy", source.owner.rank, source.file, 2, lines[1])])


READER = Reader(
    kind="toy", title="toy files", recognise=recognise, open=read, facts=("toy",), per_rank="toy file"
)
'''
TOY_TEST = """
HONEST = b"toy watcher v1\\nall is well\\n"
DAMAGED = b"toy watcher v1\\n"
"""

TOY_STRATEGY = '''
"""`toy`: replicas whose gradients are averaged one by one after backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Literal

from dtk.sharding.base import Strategy, materialise
from dtk.sharding.declared import Collective
from dtk.sharding.traits import StrategyConfig, Traits


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyConfig(StrategyConfig):
    """Replicas without buckets."""

    traits = Traits(replicated_over="dp", collectives=("all_reduce",))
    collectives = "all_reduce of each gradient"
    sent = "2 P (N-1)/N"
    use_when = "never"
    limits = {"repeats": (1, 10)}

    name: Literal["toy"] = "toy"
    repeats: int = 1

    def declare(self, shapes, mesh, precision, accumulation_steps):
        size = 4 * sum(map(prod, shapes.parameters))
        return [Collective("all_reduce", "dp", len(shapes.parameters), size)]


class Toy(Strategy):
    def wrap(self, model, fill):
        materialise(model, self.context.device, fill)
        return model

    @contextmanager
    def accumulate(self, wrapped, last) -> Iterator[None]:
        import torch.distributed as dist

        from dtk.parallel.regions import communication

        yield
        for parameter in wrapped.parameters() if last else ():
            with communication("all_reduce", parameter.grad.nbytes, "dp"):
                dist.all_reduce(parameter.grad)
            parameter.grad /= self.context.dp_size


CONFIG, STRATEGY = ToyConfig, Toy
'''
TOY_STRATEGY_TEST = """
from diagnostics.contract.mesh import Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import ModelShapes
from dtk.strategies.toy import CONFIG


def test_each_gradient_is_reduced_once():
    shapes = ModelShapes([(2, 3), (4,)], [], [])
    (declared,) = CONFIG(name="toy").declare(shapes, Mesh(dp_replicate=2), PrecisionConfig(name="fp32"), 1)
    assert (declared.op, declared.count, declared.size_bytes) == ("all_reduce", 2, 40)
"""
TOY_YAML = """# A toy.
# Use: python -m dtk.run strategy=toy
name: toy
repeats: 1  # how often it is played
"""


TOY_CAUSE = '''
"""A rank ran out of toys."""

from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import STATED, Finding, confirmed
from diagnostics.evidence.model import Evidence, RankError

_TEXTS = Texts(__file__)


def _errors(evidence: Evidence) -> list[RankError]:
    """Return what the ranks said."""
    return evidence.errors


def decide(errors: list[RankError]) -> Finding:
    """Decide it by the exceptions."""
    ranks = tuple(sorted(error.rank for error in errors if error.rank is not None and error.type == "ToyError"))
    if not ranks:
        return _TEXTS.ruled_out("no_error") if errors else _TEXTS.undecided()
    return confirmed(facts=_TEXTS.facts("out", ranks=ranks), confidence=STATED, ranks=ranks)


CAUSE = declared(__file__, _errors, decide)
'''
TOY_CAUSE_WORDS = """# `env.out_of_toys`: what docs/causes.md says of it.
cause:
  title: a rank ran out of toys
  outcome: crashed
  branch: environment.settings
  groups: [REFUSED]
  decided_from: exceptions in logs
  remedy: TOYS=2
  ruled_out_by: logs without a ToyError
  source: the toy's manual
  example: {kind: log, ranks: [1]}
suspected:
  share: 0.3
  ranks: stalled
  decide: stacks
  clues: {scalar: 30}
texts:
  out:
    summary: '{ranks:^} ran out of toys.'
    measured: '{ranks:n} ranks'
    remedies:
      - {kind: environment, change: TOYS=2, why: one is never enough}
  no_error: {summary: No rank ran out of toys., measured: 0 ranks}
  open: {summary: No rank raised an exception., missing: the ranks' stderr}

example: |
  [rank1]: Traceback (most recent call last):
  [rank1]:   File "/job/train.py", line 3, in <module>
  [rank1]:     play()
  [rank1]: ToyError: none is left

counterexample: |
  [rank1]: Traceback (most recent call last):
  [rank1]:   File "/job/train.py", line 3, in <module>
  [rank1]:     play()
  [rank1]: ValueError: none is left
"""

WAITS_FOR_TOYS = "".join(
    f"[rank{rank}]:[E1122 10:20:30.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: "
    "WorkNCCL(SeqNum=900, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds\n"
    for rank in (0, 2)
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages as they are checked in, to be changed."""
    for package in ("diagnostics", "dtk"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tmp_path


def dtk(copy: Path, *arguments: str, module: str = "dtk.commands.main") -> subprocess.CompletedProcess[str]:
    """`dtk` out of the copy."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_reader_is_one_file_and_its_test(copy: Path) -> None:
    (copy / "diagnostics/evidence/readers/toy.py").write_text(TOY_READER, encoding="utf-8")
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (copy / "tests/unit/diagnostics/evidence/readers/test_toy.py").write_text(TOY_TEST, encoding="utf-8")
    registry = "tests/unit/diagnostics/evidence/job/test_registry.py"
    passed = dtk(copy, "-v", "-k", "toy", "-p", "no:cacheprovider", registry, module="pytest")
    assert passed.returncode == 0, passed.stdout
    assert "test_an_honest_file_is_taken_by_its_reader_and_read[toy]" in passed.stdout
    files = copy / "left"
    files.mkdir()
    namespace: dict[str, bytes] = {}
    exec(TOY_TEST, namespace)
    (files / "rank_0.toy").write_bytes(namespace["HONEST"])
    (files / "rank_1.toy").write_bytes(namespace["HONEST"])
    (files / "rank_3.toy").write_bytes(namespace["DAMAGED"])
    ended = dtk(copy, "diagnose", str(files), "--json")
    assert ended.returncode in (0, 1), ended.stderr
    (line,) = [row for row in json.loads(ended.stdout)["coverage"] if row["kind"] == "toy"]
    assert line["ranks_present"] == 2
    assert line["problems"] == ["rank_3.toy: it ends after its first line"]
    nothing = copy / "nothing"
    nothing.mkdir()
    assert "toy files" in dtk(copy, "diagnose", str(nothing)).stderr


def test_a_cause_is_one_file_and_its_words(copy: Path) -> None:
    """Its examples are diagnosed, as the tests of all causes do it; trees and documents know it."""
    (copy / "diagnostics/causes/env/out_of_toys.py").write_text(TOY_CAUSE, encoding="utf-8")
    (copy / "diagnostics/causes/env/out_of_toys.yaml").write_text(TOY_CAUSE_WORDS, encoding="utf-8")
    shutil.copytree(ROOT / "docs", copy / "docs")
    for package in ("tests", "conf"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    registry = "tests/unit/diagnostics/causes/test_registry.py"
    passed = dtk(copy, "-v", "-k", "out_of_toys", "-p", "no:cacheprovider", registry, module="pytest")
    assert passed.returncode == 0, passed.stdout
    texts = (
        "the_example_is_diagnosed",
        "the_counterexample_does_not_confirm_it",
        "it_is_suspected_by_clues_that_exist",
    )
    for test in texts:
        assert f"test_{test}[env.out_of_toys]" in passed.stdout
    rules = ("tests/house/test_no_prose.py", "tests/house/test_mirror.py::test_every_module_has_a_test_file")
    passed = dtk(copy, "-q", "-p", "no:cacheprovider", *rules, module="pytest")
    assert passed.returncode == 0, passed.stdout
    words = copy / "diagnostics/causes/env/out_of_toys.yaml"
    words.write_text(TOY_CAUSE_WORDS.partition("\ncounterexample:")[0], encoding="utf-8")
    refused = dtk(copy, "-q", "-p", "no:cacheprovider", rules[1], module="pytest")
    assert "causes/env/out_of_toys.py has no tests/unit" in refused.stdout, "one example shows no limit"
    words.write_text(TOY_CAUSE_WORDS, encoding="utf-8")
    (copy / "left").mkdir()
    log = subprocess.run(
        [sys.executable, "-c", "from diagnostics.causes.env.out_of_toys import CAUSE; print(CAUSE.example.text)"],
        cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    (copy / "left/train.log").write_text(log)
    relations = "from diagnostics.causes.registry import by_id; print(by_id()['hang.network'].explained_by)"
    related = subprocess.run(
        [sys.executable, "-c", relations], cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, check=True,
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "env.out_of_toys" in related, "it is in a group because its own table says so"
    ended = dtk(copy, "diagnose", "left", "--json")
    assert ended.returncode == 1, ended.stderr
    report = json.loads(ended.stdout)
    (finding,) = [item for item in report["findings"] if item["cause"] == "env.out_of_toys"]
    assert (finding["status"], finding["ranks"]) == ("confirmed", [1])
    assert finding["summary"] == "Rank 1 ran out of toys." and finding["remedies"][0]["change"] == "TOYS=2"
    assert any("env.out_of_toys" in json.dumps(tree) for tree in report["tree"]["children"])
    subprocess.run(
        [sys.executable, "docs/causes.py"], cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, check=True
    )
    page = (copy / "docs/causes.md").read_text()
    assert "| `env.out_of_toys` | a rank ran out of toys |" in page and "[rank1]: ToyError: none is left" in page
    nothing = copy / "nothing"
    nothing.mkdir()
    (nothing / "train.log").write_text((copy / "left/train.log").read_text().replace("ToyError", "ValueError"))
    others = json.loads(dtk(copy, "diagnose", str(nothing), "--json").stdout)["findings"]
    assert [other["status"] for other in others if other["cause"] == "env.out_of_toys"] == ["ruled_out"]
    (nothing / "train.log").write_text(WAITS_FOR_TOYS)
    (first, *_) = json.loads(dtk(copy, "diagnose", str(nothing), "--json").stdout)["suspicions"]
    assert (first["cause"], first["ranks"]) == ("env.out_of_toys", [1]) and "py-spy" in first["decide"]
    assert first["speaks_for"] == ["an all_reduce of 1 element is a metric, a flag or a barrier, often conditional"]


def test_a_strategy_is_one_file_and_its_values_and_its_test(copy: Path) -> None:
    shutil.copytree(ROOT / "conf", copy / "conf")
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / "dtk/strategies/toy.py").write_text(TOY_STRATEGY, encoding="utf-8")
    (copy / "conf/strategy/toy.yaml").write_text(TOY_YAML, encoding="utf-8")
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (copy / "tests/unit/strategies/test_toy.py").write_text(TOY_STRATEGY_TEST, encoding="utf-8")
    passed = dtk(copy, "-q", "-p", "no:cacheprovider", "tests/unit/strategies/test_toy.py", module="pytest")
    assert passed.returncode == 0, passed.stdout
    taken = "from tests.dist import test_collectives as a, test_parity as b; print('toy' in a.CASES.keys() & b.CASES)"
    environ = {**os.environ, "PYTHONPATH": str(copy)}
    listed = subprocess.run([sys.executable, "-c", taken], cwd=copy, env=environ, capture_output=True, text=True)
    assert listed.stdout == "True\n", listed.stderr
    losses = {}
    for strategy in ("toy", "ddp"):
        small = ("model=gpt2_tiny", "train.steps=2", "launcher.device=cpu", "launcher.nproc=2", "data.max_bytes=300000")
        words = (f"strategy={strategy}", *small, f"runs_folder={copy / 'runs'}")
        if strategy == "toy":
            ended = dtk(copy, *words, module="dtk.run")
        else:
            ended = run_module(["dtk.run", *words], environment(), ROOT, 120)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        (folder,) = (copy / "runs").glob(f"*-{strategy}-*")
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses[strategy] = [record["loss"] for record in records if "loss" in record]
        if strategy == "toy":
            traits = json.loads((folder / "manifest.json").read_text())["strategy_traits"]
            assert (traits["replicated_over"], traits["gradients_in"]) == ("dp", None)
    assert losses["toy"] == pytest.approx(losses["ddp"], rel=1e-5)
    table = dtk(copy, "strategies").stdout
    assert "toy: Replicas without buckets" in table and "all_reduce of each gradient" in table
    planned = dtk(copy, "plan", "strategy=toy", "model=gpt2_tiny", "--world-size", "2")
    assert planned.returncode == 0 and "all_reduce" in planned.stdout, planned.stderr
    assert "out of range" in dtk(copy, "plan", "strategy=toy", "strategy.repeats=11").stderr
    assert "How often it is played." in dtk(copy, "explain", "strategy.repeats").stdout
    shutil.copytree(ROOT / "docs", copy / "docs")
    shutil.copy(ROOT / "README.md", copy)
    table = "tests/house/test_documents.py::test_the_strategy_table_is_the_printed_one"
    assert "1 failed" in dtk(copy, "-q", "-p", "no:cacheprovider", table, module="pytest").stdout
    subprocess.run([sys.executable, "docs/configuration.py"], cwd=copy, env=environ, check=True)
    passed = dtk(copy, "-q", "-p", "no:cacheprovider", table, module="pytest")
    assert passed.returncode == 0, passed.stdout
    assert "| toy | P | P | K |" in (copy / "docs/strategies.md").read_text(encoding="utf-8")
