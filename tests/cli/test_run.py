"""One run from the command line: what it prints, what it leaves, and what goes on from it."""

import json
import os
import pty
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml

from tests.cli.command import ROOT, TINY, environment, metrics, only_run, run, status
from tests.patience import stretched

TRAINED = [*TINY, "train.steps=6", "checkpoint.export=true", "schedule=constant", "optimizer.lr=0.01"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    process = run(folder, *TRAINED, "strategy=fsdp", "record=full")
    assert process.returncode == 0, process.stdout + process.stderr
    return process, only_run(folder)


@pytest.mark.timeout(120)
def test_it_says_what_it_chose_and_why(trained):
    process, folder = trained
    out = process.stdout
    for text in ("2 on cpu over gloo", "0 CUDA devices found", "8 samples = 2 ranks x 1 micro-batch of 4", "step 6/6"):
        assert text in out
    assert "MFU not available: the CPU has no published peak" in out
    assert "\x1b" not in out, "colours only on a terminal"
    following = out.splitlines()[-1].removeprefix("next: ")
    assert following.endswith(f"dtk diagnose {folder}"), "a profiler window was asked for"
    for command, word in ((following, "page "), (following.replace("dtk diagnose", "dtk show"), "state     finished")):
        shown = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment(), cwd=ROOT)
        assert word in shown.stdout, "it can be typed as it stands"


def test_the_run_folder_is_complete(trained):
    _, folder = trained
    for path in (
        "manifest.json",
        "config.yaml",
        "overrides.yaml",
        "metrics.jsonl",
        "summary.json",
        "parity.json",
        "events/rank_00001.jsonl",
        "heartbeat/rank_00001.json",
        "flight/rank_00001.blackbox.json",
        "traces/rank_00001.json.gz",
        "memory/rank_00001.jsonl",
        "telemetry/node_00000.jsonl",
        "logs/attempt_0/rank_00001/stderr.log",
        "checkpoints/step_00000006/checkpoint.json",
        "export/model.safetensors",
    ):
        assert (folder / path).is_file(), path
    assert status(folder)["state"] == "finished"
    assert [record["step"] for record in metrics(folder) if "loss" in record] == [1, 2, 3, 4, 5, 6]
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["definitions"]) == {*summary["figures"], "lr", "grad_norm"}
    assert len(summary["figures"]["peak_memory_bytes_per_rank"]) == 2
    assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["micro_batch_size"] == 4


@pytest.mark.timeout(120)
def test_exported_weights_start_another_run(trained, tmp_path):
    """Under another strategy and world size: its first loss is what training has reached, not ln(256)."""
    _, folder = trained
    process = run(
        tmp_path, *TINY, f"model.pretrained={folder / 'export'}", "strategy=single", "train.steps=1", "checkpoint=off"
    )
    assert process.returncode == 0, process.stdout + process.stderr
    first = metrics(only_run(tmp_path))[0]["loss"]
    losses = [record["loss"] for record in metrics(folder) if "loss" in record]
    assert first < losses[0] - 0.3
    assert first == pytest.approx(losses[-1], abs=0.5)


@pytest.mark.timeout(120)
def test_on_a_terminal_the_step_line_is_live(tmp_path):
    command = [sys.executable, "-m", "dtk.run", f"runs_folder={tmp_path}", *TINY, "train.steps=20", "checkpoint=off"]
    main_end, rank_end = pty.openpty()
    process = subprocess.Popen(
        command, stdout=rank_end, stderr=rank_end, env=environment(TERM="xterm", COLUMNS="100"), cwd=ROOT
    )
    os.close(rank_end)
    data = b""
    try:
        while chunk := os.read(main_end, 65536):
            data += chunk
    except OSError:
        pass  # the terminal is gone when the last writer has closed it
    assert process.wait(timeout=stretched(60)) == 0
    lines = data.decode().replace("\r\n", "\n").split("\n")
    live = [line for line in lines if "\r\x1b[2K" in line]
    assert 10 <= len(live) < 20, "every tenth of the run stays, the steps between are overwritten"
    assert max(line.count("\r\x1b[2K") for line in live) >= 2
    assert "finished" in data.decode()


@pytest.mark.timeout(150)
@pytest.mark.skipif(find_spec("wandb") is None, reason="the extra wandb is not installed")
def test_wandb_without_a_key_says_that_it_is_offline_and_how_to_send_it(tmp_path):
    own = {"WANDB_API_KEY": "", "WANDB_MODE": "", "HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")}
    process = run(tmp_path / "runs", *TINY, "train.steps=2", "checkpoint=off", "tracker=wandb", **own)
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.count("tracker=wandb, offline: no key in WANDB_API_KEY or the netrc file") == 1
    (line,) = [line for line in process.stdout.splitlines() if line.startswith("wandb was offline")]
    (folder,) = only_run(tmp_path / "runs").glob("wandb/offline-run-*")
    assert line.endswith(f"wandb sync {folder}")


@pytest.mark.timeout(120)
def test_record_off_leaves_no_records(tmp_path):
    process = run(tmp_path, *TINY, "train.steps=2", "record=off", "checkpoint=off")
    assert process.returncode == 0, process.stdout + process.stderr
    names = {path.name for path in only_run(tmp_path).iterdir()}
    assert names == {
        "config.yaml",
        "overrides.yaml",
        "origins.json",
        "plan.json",
        "manifest.json",
        "status.json",
        "logs",
    }


@pytest.mark.timeout(60)
def test_help_is_fast_and_complete():
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dtk", "--help"],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert process.returncode == 0
    imported = {line.split("|")[-1].strip() for line in process.stderr.splitlines()}
    assert not imported & {"torch", "hydra", "numpy", "yaml", "rich"}
