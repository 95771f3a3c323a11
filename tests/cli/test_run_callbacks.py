"""The example of docs/callbacks.md, as a user types it; and a callback that hangs, which the live watch catches."""

import json
import re
import shlex

import pytest

from tests.cli.command import ROOT, TINY, environment, status
from tests.warm_python import run_module

PAGE = (ROOT / "docs" / "callbacks.md").read_text()
ALONE = """
import torch.distributed as dist
from dtk.train.callbacks import Callback

class Alone(Callback):
    def after_step(self, training, step, record):
        if training.context.rank == 0 and step == 2:
            dist.barrier()
"""


@pytest.mark.timeout(120)
def test_the_example_of_the_page_runs(tmp_path):
    (tmp_path / "averages.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    command = shlex.split(re.search(r"```bash\npython -m (.*?)\n```", PAGE)[1])
    process = run_module(command, environment(), tmp_path, 100)
    assert process.returncode == 0, process.stdout + process.stderr
    logs = [path.read_text() for path in (tmp_path / "runs").glob("*/logs/attempt_0/rank_00000/stdout.log")]
    assert "averages of 52 parameters after step 3" in logs[0]


@pytest.mark.timeout(180)
def test_the_built_in_ones_of_the_page_run_also_before_the_launch(tmp_path):
    command = shlex.split(re.findall(r"```bash\npython -m (.*?)\n```", PAGE)[1])
    process = run_module([*command, "preflight=on"], environment(), tmp_path, 150)
    assert process.returncode == 0, process.stdout + process.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "checkpoints" / "best.json").read_text())["metric"] == "validation_loss"
    assert '"grad_norm/blocks.0"' in (run / "metrics.jsonl").read_text()


@pytest.mark.timeout(120)
def test_a_collective_on_one_rank_is_caught(tmp_path):
    (tmp_path / "mine.py").write_text(ALONE)
    own = ["callbacks=[{_target_: mine.Alone}]", "allow_targets=[mine.*]", "train.steps=20", "launcher.nproc=2"]
    process = run_module(["dtk.run", *TINY, *own, f"runs_folder={tmp_path / 'runs'}"], environment(), tmp_path, 100)
    assert process.returncode == 1, process.stdout + process.stderr
    assert "rank 0 called barrier at mine.py:8 in Alone.after_step" in process.stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert status(run)["state"] == "hung"
    rehearsed = run_module(["dtk", "preflight", *TINY, *own], environment(), tmp_path, 100)
    assert rehearsed.returncode == 1, rehearsed.stdout + rehearsed.stderr
    assert "would hang: rank 0 in barrier at mine.py:8" in rehearsed.stdout
