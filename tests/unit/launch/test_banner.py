"""What is printed first and last: counts agree, and the last line can be typed."""

import json
import subprocess
import sys

import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status
from diagnostics.contract.invocation import command
from dtk.config.batch import settle
from dtk.config.compose import compose
from dtk.config.placement import place
from dtk.launch.banner import banner, farewell
from dtk.launch.console import Console
from tests.patience import stretched


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "run").mkdir()
    return RunPaths(tmp_path / "run")


def opening(capsys, paths, *overrides, ranks=2):
    config = settle(compose(list(overrides)), ranks).config
    banner(Console(), config, paths, place(config.launcher, config.strategy, 0, ranks), 0)
    return capsys.readouterr().out


def last_words(capsys, paths, status):
    farewell(Console(), paths, status)
    return capsys.readouterr().out.splitlines()


def test_one_is_singular(capsys, paths):
    assert "1 sample = 1 rank x 1 micro-batch of 1" in opening(
        capsys, paths, "strategy=single", "train.global_batch_size=1", ranks=1
    )
    assert "8 samples = 2 ranks x 1 micro-batch of 4" in opening(capsys, paths)
    Console().failure(Failure(rank=1, reason="x", victims=[0]), "failed", paths)
    assert "then    rank 0 ended as a consequence" in capsys.readouterr().out
    Console().failure(Failure(rank=1, reason="x", victims=[0, 2]), "failed", paths)
    assert "then    ranks 0 and 2 ended as a consequence" in capsys.readouterr().out


def test_the_degrees_of_the_mesh_are_named_those_of_experts_too(capsys, paths):
    assert "  mesh      dp_shard 2, ep 2; 2 ranks along" in opening(capsys, paths, "model=moe_tiny", "strategy=moe")
    assert "  mesh      pp 2; 1 rank along" in opening(capsys, paths, "strategy=pp")
    assert "  mesh " not in opening(capsys, paths, "strategy=fsdp")


@pytest.mark.parametrize(
    ("batch", "advice"),
    [
        ("8", "fewer micro-batches than ranks; with parallel.microbatches=8 it is 27%"),
        ("2", "fewer micro-batches than ranks; with parallel.microbatches=16 train.global_batch_size=16 it is 16%"),
    ],
)
def test_a_pipeline_of_few_micro_batches_is_told_a_number_that_divides_its_batch(batch, advice, capsys, paths):
    typed = ("strategy=pp", "parallel.pp=4", "parallel.microbatches=2", f"train.global_batch_size={batch}")
    assert advice in opening(capsys, paths, *typed, ranks=4)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_a_run_that_is_all_warm_up_says_so(schedule, capsys, paths):
    assert "5 steps, all of them warm-up (schedule.warmup_steps=5)" in opening(
        capsys, paths, f"schedule={schedule}", "train.steps=5"
    )
    assert "warm-up" not in opening(capsys, paths, f"schedule={schedule}", "train.steps=16")


@pytest.mark.parametrize(
    ("typed", "idle"),
    [
        (["topk_ratio=0.1"], "strategy.topk_ratio=0.1 has no effect with strategy.communication_hook=none"),
        (["error_feedback=false", "powersgd_rank=2", "communication_hook=bf16"], "have no effect with"),
        (["topk_ratio=0.1", "communication_hook=topk"], ""),
    ],
)
def test_a_key_without_effect_is_named(typed, idle, capsys, paths):
    said = opening(capsys, paths, "strategy=zero1", *(f"strategy.{key}" for key in typed))
    assert idle in said and ("no effect" in said) == bool(idle)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (["strategy.communication_hook=topk"], True),
        (["strategy.communication_hook=topk", "optimizer=sgd", "optimizer.momentum=0.9"], True),
        (["strategy.communication_hook=topk", "optimizer=sgd", "optimizer.momentum=0"], False),
        (["strategy.communication_hook=int8"], False),
    ],
)
def test_topk_behind_an_optimizer_that_averages_is_warned_of(typed, text, capsys, paths):
    assert ("topk trains worse" in opening(capsys, paths, "strategy=ddp", *typed)) == text


def test_a_stop_at_once_names_no_step(capsys, paths):
    at_once = Status("preempted", exit_code=143, reason="stopped at once, without a checkpoint")
    assert last_words(capsys, paths, at_once) == [
        "stopped at once, without a checkpoint",
        f"next: {command('run', f'resume={paths.root}')}",
    ]
    stopped = Status("preempted", exit_code=143, reason="stopped by a signal", step=7)
    assert last_words(capsys, paths, stopped)[0] == "stopped at step 7: stopped by a signal"


def test_a_run_with_a_trace_is_to_be_diagnosed_next(capsys, paths):
    paths.summary.write_text(json.dumps({"figures": {"peak_memory_bytes": 2**30, "loss": 1.0, "tokens_per_s": 10.0}}))
    assert last_words(capsys, paths, Status("finished", exit_code=0))[-1] == f"next: {command('show', str(paths.root))}"
    paths.trace(0).parent.mkdir(parents=True)
    paths.trace(0).write_bytes(b"")
    assert (
        last_words(capsys, paths, Status("finished", exit_code=0))[-1]
        == f"next: {command('diagnose', str(paths.root))}"
    )


def test_a_loss_that_is_not_finite_is_to_be_diagnosed_next(capsys, paths):
    paths.summary.write_text('{"figures": {"peak_memory_bytes": 1073741824, "loss": NaN, "tokens_per_s": 10.0}}')
    lines = last_words(capsys, paths, Status("finished", exit_code=0))
    assert (
        lines[0].startswith("finished: loss nan, 10 tokens/s")
        and lines[-1] == f"next: {command('diagnose', str(paths.root))}"
    )


def test_what_wandb_kept_is_told_with_the_command_that_sends_it(capsys, paths):
    figures = {"peak_memory_bytes": 2**30, "loss": 1.0, "tokens_per_s": 10.0}
    paths.summary.write_text(json.dumps({"figures": figures}))
    assert not any(line.startswith("wandb") for line in last_words(capsys, paths, Status("finished", exit_code=0)))
    folders = [paths.root / "wandb" / f"offline-run-2026010{day}_000000-x" for day in (2, 1)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "run-x.wandb").touch()
    line = last_words(capsys, paths, Status("finished", exit_code=0))[0]
    assert line == f"wandb was offline; to upload it: {command('sync', *reversed(folders), name='wandb')}"


def test_a_closed_pipe_costs_the_output_only():
    code = """
import sys
from dtk.launch.console import Console
console = Console()
console.line("first")
sys.stdin.read()
for _ in range(3):
    console.progress("step 1/2")
    console.line("more")
sys.exit(7)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    process.stdin.close()
    assert process.wait(timeout=stretched(60)) == 7
    assert process.stderr.read() == b""
