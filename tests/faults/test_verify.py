"""`--verify-fix` runs the first remedy and says whether it holds."""

import json

import pytest

from diagnostics.runs.records import read_origins
from tests.cli.command import ROOT, environment
from tests.faults.runs import run_fault
from tests.warm_python import run_module


def dtk(*arguments):
    return run_module(["dtk", *arguments], environment(), ROOT, 100)


@pytest.mark.timeout(200)
def test_a_hang_is_gone_with_its_remedy(fault_folder):
    run = run_fault(fault_folder, "extra_collective").path
    done = dtk("diagnose", str(run), "--verify-fix")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the fix holds: hang.conditional_collective with fault=none" in done.stdout
    assert "hung in step 4" in done.stdout
    assert "finished after step" in done.stdout
    assert "verify: the run with fault=none" in done.stderr
    again = dtk("diagnose", str(run), "--json")
    assert json.loads(again.stdout)["outcome"] == "hung", "the short run inside the folder is none of its evidence"


@pytest.mark.extended
@pytest.mark.timeout(200)
def test_a_remedy_that_leaves_a_fault_no_place_runs_without_it(fault_folder):
    run = run_fault(fault_folder, "sync_every_micro_batch").path
    done = dtk("diagnose", str(run), "--verify-fix")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "overlap.accumulation_sync with train.micro_batch_size=4" in done.stdout
    assert "needs several micro-batches per step: here there is one)" in done.stderr
    assert len(list((run / "verify").iterdir())) == 2


@pytest.mark.timeout(200)
def test_what_cannot_be_verified_is_one_line(fault_folder, tmp_path):
    healthy = run_fault(fault_folder, "none", "experiment=smoke", "strategy=ddp", "checkpoint=off").path
    done = dtk("diagnose", str(healthy), "--verify-fix")
    assert (done.returncode, done.stderr) == (2, "dtk: there is nothing to verify: no cause was found\n")
    trace = ("Traceback (most recent call last):", '  File "/job/train.py", line 3, in main', "ValueError: x")
    (tmp_path / "stderr.log").write_text("".join(f"[rank1]: {line}\n" for line in trace))
    done = dtk("diagnose", str(tmp_path), "--verify-fix")
    assert done.returncode == 2
    assert done.stderr.startswith("dtk: --verify-fix reruns the job, and this is not a dtk run")
    assert done.stderr.count("\n") == 1


@pytest.mark.extended
@pytest.mark.timeout(200)
def test_a_run_again_has_its_own_folder_and_what_was_changed(fault_folder, tmp_path):
    import yaml

    first = run_fault(fault_folder, "none", "experiment=smoke", "strategy=ddp", "checkpoint=off").path
    runs = tmp_path / "again"
    words = ("dtk.run", "--rerun", str(first), "train.steps=2", "strategy.bucket_cap_mb=3", f"runs_folder={runs}")
    done = dtk(*words)
    assert done.returncode == 0, done.stderr
    (again,) = runs.iterdir()
    before, after = (yaml.safe_load((run / "config.yaml").read_text()) for run in (first, again))
    assert after["strategy"]["bucket_cap_mb"] == 3
    assert {key for key in before if before[key] != after[key]} == {"train", "strategy", "runs_folder"}
    assert json.loads((again / "manifest.json").read_text())["rerun_of"] == first.name
    (typed, *_, base) = reversed(read_origins(again / "origins.json").keys["train.steps"])
    assert (typed.by, base.by.split(":")[0]) == ("train.steps=2", "conf/config.yaml")
    for words, said in (
        (("--rerun", str(tmp_path / "absent")), f'no run "{tmp_path / "absent"}"'),
        (("--rerun", str(first), "strategy.bucket_capmb=3"), "did you mean"),
        (("--rerun", str(first), "experiment=smoke"), "experiment cannot be given"),
        (("--rerun", str(first), f"resume={first}"), "give one of them"),
    ):
        done = dtk("dtk.run", *words)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        lines = [line for line in done.stderr.splitlines() if not line.startswith("dtk: warning: the code differs")]
        assert len(lines) == 1, done.stderr
