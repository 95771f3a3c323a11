"""`dtk tune` as it is typed: probes are real runs, memory that runs out is seen, the rest of the disk stays clean."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dtk.commands.main import main
from tests.cli.command import ROOT, environment
from tests.warm_python import run_module

HUNGRY = [
    "model=custom",
    "model._target_=tests.cli.hungry.Hungry",
    "model.vocab_size=256",
    "model.context_length=64",
    "allow_targets=[tests.cli.hungry.*]",
    "data=synthetic",
    "data.sequence_length=32",
]
TINY = ["model=gpt2_tiny", "model.layers=2", "model.width=32", "model.heads=2", "data=synthetic"]


def tune(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return run_module(["dtk", "tune", *arguments], environment(OMP_NUM_THREADS="1", **more), ROOT, 500)


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_memory_that_runs_out_ends_the_search(tmp_path: Path) -> None:
    """One process: a micro-batch of 1 fits, one of 2 does not."""
    job = [*HUNGRY, "model.arguments={most:1}", "strategy=single", "train.global_batch_size=4"]
    done = tune("micro_batch_size", *job, "--repeats", "1", "--steps", "2", "--json", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    output: dict[str, Any] = json.loads(done.stdout)
    assert output["take"] == "train.micro_batch_size=1"
    assert [(candidate["override"], candidate["ended"]) for candidate in output["candidates"]] == [
        ("train.micro_batch_size=1", "finished"),
        ("train.micro_batch_size=2", "out of memory"),
    ]
    first = output["candidates"][0]
    assert first["tokens_per_s"]["median"] > 1 and first["peak_memory_bytes"]["median"] > 2**20
    assert done.stderr.count("search: train.micro_batch_size=2: out of memory") == 1
    assert not list(tmp_path.glob("dtk-tune-*")), "probes leave nothing behind"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bucket", "strategy=fsdp"], "strategy=fsdp has no buckets"),
        (["wrap", "strategy=ddp"], "strategy=ddp wraps no units"),
        (["micro_batch_size", "train.micro_batch_size=2"], "it is what is searched"),
        (["micro_batch_size", "train.global_batch_size=7", "launcher.nproc=2"], "cannot be split over 2 ranks"),
        (["micro_batch_size", "resume=runs/x"], "a probe trains from the start"),
        (["bucket", "strategy=ddp", "--values", "1,,2"], "has an empty entry"),
        (["bucket", "strategy=ddp", "--values", "many"], "'many' is not a bucket size"),
        (["bucket", "strategy=dpp"], "did you mean"),
        (["nccl", "strategy=ddp", "--values", "auto,low_memory"], "low_memory"),
        (["nccl", "strategy=ddp", "--values", "auto,low_memroy"], "did you mean low_memory?"),
        (["wrap", "--keep", "/proc/none/x"], "cannot keep probes in /proc/none/x"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["tune", *arguments]) == 2
    out, error = capsys.readouterr()
    assert text in error and error.count("\n") == 1 and out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_doubling_and_bisecting_by_real_runs(tmp_path: Path) -> None:
    job = [*HUNGRY, "model.arguments={most:6}", "strategy=ddp", "train.global_batch_size=48"]
    done = tune("micro_batch_size", *job, "--repeats", "1", "--steps", "2", "--json", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    tried = [candidate["override"].rpartition("=")[2] for candidate in json.loads(done.stdout)["candidates"]]
    assert tried == ["1", "2", "4", "6", "8"]
    assert len(list((tmp_path / "kept").iterdir())) == 5


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_limit_of_the_address_space_is_seen_as_memory() -> None:
    """Each sample asks for 4 GiB of addresses, of which there are 14: torch itself needs some, two samples fit."""
    job = [*HUNGRY, "model.arguments={sample_gib:4}", "strategy=single", "train.global_batch_size=8"]
    arguments = ["tune", "micro_batch_size", *job, "--repeats", "1", "--steps", "2", "--json"]
    limit = f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({14 << 30},) * 2)"
    code = f"{limit}; from dtk.commands.main import main; sys.exit(main({arguments!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=ROOT, env=environment())
    output = json.loads(done.stdout)
    assert [candidate["out_of_memory"] for candidate in output["candidates"]] == [False, False, True], done.stderr


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("topic", "strategy", "value"), [("bucket", "ddp", "0.01"), ("wrap", "fsdp", "0"), ("nccl", "ddp", "low")]
)
def test_candidates_take_turns(topic: str, strategy: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "nccl").mkdir()
    text = "# Harmless.\n# Use: python -m dtk.run nccl=low\nname: low\nvariables: {NCCL_HARMLESS: x}\n"
    (tmp_path / "nccl" / "low.yaml").write_text(text)
    options = ["--values", value, "--repeats", "2", "--steps", "2", "--json", "--config-dir", str(tmp_path)]
    done = tune(topic, f"strategy={strategy}", *TINY, "data.sequence_length=32", *options)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert [candidate["ended"] for candidate in output["candidates"]] == ["finished", "finished"]
    assert output["candidates"][0]["present"] and output["candidates"][1]["gain"]["count"] == 2
    assert output["candidates"][1]["told"] == "too few repeats for an interval" and output["take"] is None


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_a_probe_that_fails_by_something_else_is_kept_and_named(tmp_path: Path) -> None:
    job = [
        "model=custom",
        "model._target_=tests.cli.faulty.Faulty",
        "model.arguments={fault: raise, forward: 1, rank: 0}",
    ]
    job += ["model.vocab_size=256", "model.context_length=64", "allow_targets=[tests.cli.faulty.*]", "data=synthetic"]
    job += ["data.sequence_length=32", "strategy=single", "train.global_batch_size=4"]
    done = tune("micro_batch_size", *job, "--steps", "2", TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.startswith("ended early: train.micro_batch_size=1 failed: ValueError: bad batch")
    assert len(list(tmp_path.glob("dtk-tune-*/*/status.json"))) == 1
