"""Each command on each page is executed: here, or by a test that is named here. What no laptop can run has a reason.

README, docs/run.md, the guides and the tutorial are executed by test_documents.py.
"""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.command import ROOT, environment
from tests.house.test_documents import DOCUMENTS, RUN, TUTORIAL, typed_on
from tests.unit.ui.folders import make_run
from tests.warm_python import run_module

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
FULL_TENSOR = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = fully_shard(torch.nn.Linear(8, 8))
for step in range(2):
    model(torch.ones(4, 8)).sum().backward()
    if dist.get_rank() == 0:
        print(sum(parameter.full_tensor().norm() for parameter in model.parameters()))
"""
LOG = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 31, in <module>
[rank1]:     loss.backward()
[rank1]: RuntimeError: the loss is no scalar
"""
SBATCH = "#!/bin/bash\n#SBATCH --nodes=4\nexport NCCL_IB_TIMEOUT=22\nsrun python train.py\n"
POD = "kind: Pod\nspec:\n  containers:\n  - name: a\n    env:\n    - {name: NCCL_DEBUG, value: INFO}\n"


class Executed(NamedTuple):
    """A command that is executed here: with which exit codes, in `make test` or only in `make test-all`."""

    codes: tuple[int, ...] = (0,)
    extended: bool = False


class Elsewhere(NamedTuple):
    """A command that a test of this path executes, or whose parts it does."""

    test: str


class NotHere(NamedTuple):
    """A command that nothing executes as it is written."""

    why: str


QUICK, SLOW = Executed(), Executed(extended=True)
RULES: tuple[tuple[str, Executed | Elsewhere | NotHere], ...] = (
    (r"dtk run fault=", Elsewhere("tests/faults/test_faults.py")),
    (r"dtk run launcher=", Elsewhere("tests/cli/test_run_launcher.py")),
    (r"dtk run .*quadrants", Elsewhere("tests/cli/test_run_own_experiment.py")),
    (r"dtk run .*muon", Elsewhere("tests/unit/train/test_optimizer.py")),
    (r"dtk run model=hf", Elsewhere("tests/dist/test_pretrained.py")),
    (r"dtk run .*callbacks=", Elsewhere("tests/cli/test_run_callbacks.py")),
    (r"dtk run .*offload_to=nvme", Elsewhere("tests/dist/test_tiers.py")),
    (r"dtk run tracker=custom", Elsewhere("tests/unit/record/test_trackers.py")),
    (r"dtk run strategy=deepspeed", Elsewhere("tests/dist/test_deepspeed.py")),
    (r"dtk run strategy=fsdp .*train.steps=30|dtk run .*parallel.pp=2", SLOW),
    (r"dtk run -m|dtk sweep (?!.*--dry-run)", Elsewhere("tests/cli/test_sweep.py")),
    (r"dtk sweep .*--dry-run", QUICK),
    (r"dtk run nccl=tcp_ethernet", NotHere("eth0 need not be the name of an interface here")),
    (r"dtk run nccl=infiniband", NotHere("needs InfiniBand")),
    (r"dtk run preflight=on", NotHere("trains GPT-2 of 124 million parameters for 100 steps")),
    (r"dtk attach", Elsewhere("tests/cli/test_attach.py")),
    (r"dtk ui", Elsewhere("tests/browser/test_ui_page.py")),
    (r"dtk tune", Elsewhere("tests/cli/test_tune.py")),
    (r"dtk bench comm", Elsewhere("tests/cli/test_bench.py")),
    (r"dtk watch --stall-timeout-s 60", Elsewhere("tests/cli/test_watch_any.py")),
    (r"dtk watch", SLOW),
    (r"dtk doctor", Executed((0, 1), extended=True)),
    (r"dtk preflight .*4096", Elsewhere("tests/cli/test_preflight.py")),
    (r"dtk preflight .*--what-if", SLOW),
    (r"dtk preflight --script full_tensor", Executed((1,), extended=True)),
    (r"dtk preflight --script", SLOW),
    (r"dtk diagnose (job.log|\.|/tmp/job42)$", Executed((1,))),
    (r"dtk compare", Elsewhere("tests/cli/test_compare.py")),
    (r"dtk nccl lint", Executed((0, 1))),
    (r"dtk rm (?!.*--dry-run)", Executed((2,))),  # Nobody is there to confirm it.
    (r"dtk plan .*rtx4090", Executed((1,), extended=True)),
    (r"dtk plan", SLOW),
    (r"dtk show last --why", Elsewhere("tests/unit/runs/test_why.py")),
    (r"dtk (ls|rm|nccl|diagnose)", QUICK),
)
PLACES = {"/tmp/job42": "job", "/data/runs": "runs", "conf/sweep": str(ROOT / "conf" / "sweep")}
"""Paths of the reader's own machine, and what stands for them."""


def commands() -> list[str]:
    """Every command of every page, without those that test_documents.py executes."""
    there = {command.replace("python -m dtk.run", "dtk run") for command in RUN}
    typed = dict.fromkeys(line for page in DOCUMENTS if page != TUTORIAL for line in typed_on(page))
    return [line for line in typed if line not in there and not line.startswith("dtk run experiment=smoke")]


def rule(command: str) -> Executed | Elsewhere | NotHere | None:
    """What is done with a command; the first pattern that it begins with decides."""
    return next((what for pattern, what in RULES if re.match(pattern, command)), None)


def executed() -> list[object]:
    """The commands to execute here, those that take long among the tests of `make test-all`."""
    marks = {False: (), True: (pytest.mark.extended,)}
    return [
        pytest.param(command, what, marks=marks[what.extended])
        for command in commands()
        if isinstance(what := rule(command), Executed)
    ]


def test_every_command_is_executed_or_has_a_reason() -> None:
    rules = {command: rule(command) for command in commands()}
    assert len(rules) > 80 and not [command for command, what in rules.items() if what is None]
    for what in rules.values():
        if isinstance(what, Elsewhere):
            assert (ROOT / what.test).is_file(), what.test
    used = {next(pattern for pattern, _ in RULES if re.match(pattern, command)) for command in rules}
    assert used == {pattern for pattern, _ in RULES}, "a pattern that no page needs any more"
    assert sum(isinstance(what, NotHere) for what in rules.values()) <= 6


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as a reader has it: a run, the log of a job that failed, scripts."""
    place = tmp_path / "reader"
    make_run(place / "runs", "20260102-1504-gpt2-fsdp-w2-48ef")
    (place / "job").mkdir()
    files = {
        "job.log": LOG,
        "job/train.log": LOG,
        "train.py": TRAIN,
        "full_tensor.py": FULL_TENSOR,
        "train.sbatch": SBATCH,
        "job.yaml": POD,
    }
    for name, text in files.items():
        (place / name).write_text(text)
    return place


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("command", "what"), executed())
def test_the_command_ends_as_its_page_says(command: str, what: Executed, place: Path) -> None:
    for theirs, ours in PLACES.items():
        command = command.replace(theirs, ours)
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # torchrun
    process = run_module(shlex.split(command), environment(COLUMNS="120", PATH=beside), place, 180)
    assert process.returncode in what.codes, process.stdout + process.stderr
    assert "Traceback" not in process.stderr
