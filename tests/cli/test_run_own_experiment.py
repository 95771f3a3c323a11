"""The example of docs/own_experiment.md, as a user types it: run, resumed, planned and rehearsed."""

import re
import shlex

import pytest

from diagnostics.contract.artifacts import read_json
from tests.cli.command import ROOT, environment
from tests.warm_python import run_module

PAGE = (ROOT / "docs" / "own_experiment.md").read_text()
SMALL = ["launcher.nproc=2", "launcher.device=cpu", "data.workers=1"]


@pytest.fixture
def words(tmp_path):
    (tmp_path / "quadrants.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    return shlex.split(re.search(r"```bash\npython -m dtk.run (.*?)\n```", PAGE)[1])


@pytest.mark.timeout(150)
def test_the_example_of_the_page_learns_and_resumes(words, tmp_path):
    process = run_module(["dtk.run", *words, *SMALL], environment(), tmp_path, 100)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "step 29/29" in process.stdout  # 2 epochs of 461 samples in batches of 32
    assert "samples/s" in process.stdout and "tokens" not in process.stdout
    assert re.search(
        r"evaluation at step 29: loss \S+  accuracy \S+%  confidence error \S+  51 held-out", process.stdout
    )
    (run,) = (tmp_path / "runs").iterdir()
    summary = read_json(run / "summary.json")
    assert 0 < summary["figures"]["validation_confidence_error"] < 1
    more = ["dtk.run", f"resume={run}", "train.epochs=3", "allow_targets=[quadrants.*]"]
    again = run_module(more, environment(), tmp_path, 100)
    assert again.returncode == 0 and "step 44/44" in again.stdout, again.stdout + again.stderr


@pytest.mark.timeout(120)
def test_it_is_planned_and_rehearsed(words, tmp_path):
    planned = run_module(["dtk", "plan", *words, *SMALL], environment(), tmp_path, 100)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    rehearsed = run_module(["dtk", "preflight", *words, *SMALL], environment(), tmp_path, 100)
    assert rehearsed.returncode == 0, rehearsed.stdout + rehearsed.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["optimizer=custom", "optimizer._target_=torch.optim.Adafactor"], "gives each rank a part of every parameter"),
        (["task._target_=quadrants.Net"], "is not a dtk.tasks.base.Task"),
        (["data.arguments={sise: 3}"], 'no argument "sise" - did you mean size?'),
        (["data.arguments={size: 20}"], "train.global_batch_size=32 is more than the 18 training samples"),
    ],
)
def test_what_does_not_fit_is_one_line_before_any_rank_starts(words, more, text, tmp_path):
    process = run_module(["dtk.run", *words, *SMALL, *more], environment(), tmp_path, 50)
    assert process.returncode == 2 and text in process.stderr, process.stdout + process.stderr
    assert "Traceback" not in process.stderr
