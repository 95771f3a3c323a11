"""`dtk bench comm` as it is typed: real ranks, two presets in turns, under torchrun, and with a rank that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from dtk.commands.main import main
from tests.cli.command import ROOT, environment
from tests.patience import stretched
from tests.warm_python import run_module

SMALL = ["--min-size", "1K", "--max-size", "64K", "--factor", "64", "--seconds", "3", "--calls", "3"]


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    (tmp_path / "nccl").mkdir()
    for name in ("one", "two"):
        text = (
            f"# Harmless.\n# Use: python -m dtk.run nccl={name}\nname: {name}\nvariables: {{NCCL_HARMLESS: {name}}}\n"
        )
        (tmp_path / "nccl" / f"{name}.yaml").write_text(text)
    return tmp_path


def bench(*arguments: str, launcher: tuple[str, ...] = (), **more: str) -> "subprocess.CompletedProcess[str]":
    variables = environment(OMP_NUM_THREADS="1", **more)
    if not launcher:
        return run_module(["dtk", "bench", "comm", *arguments], variables, ROOT, 180)
    command = [sys.executable, *launcher, "-m", "dtk", "bench", "comm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=ROOT, env=variables)


@pytest.mark.timeout(200)
def test_two_presets_on_two_real_ranks(presets: Path, tmp_path: Path) -> None:
    page = tmp_path / "comm.html"
    options = ["--ab", "one", "two", "--config-dir", str(presets), "--repeats", "1", "--json", "--html", str(page)]
    done = bench(*SMALL, *options, NCCL_HARMLESS="mine")
    assert done.returncode == 0, done.stderr
    output: dict[str, Any] = json.loads(done.stdout)
    assert (output["backend"], output["world_size"], output["device"], output["failure"]) == ("gloo", 2, "cpu", None)
    cells = {(item["side"], item["operation"], item["size_bytes"]) for item in output["results"]}
    operations = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    assert cells == {(side, name, size) for side in ("one", "two") for name in operations for size in (1024, 65536)}
    for result in output["results"]:
        assert result["wrong_elements"] == 0
        assert 1e-7 < result["time_s"]["median"] < 10
        assert result["algbw_gb_per_s"]["median"] == pytest.approx(
            result["size_bytes"] / result["time_s"]["median"] / 1e9
        )
    assert len(output["gains"]) == 10
    assert [side["kept"] for side in output["sides"]] == [{"NCCL_HARMLESS": "mine"}] * 2
    assert any("your NCCL_HARMLESS=mine is kept" in note for note in output["notes"])
    assert page.read_text().count("<polyline") == 10


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nccl=infiniband"], "nccl=infiniband is for NCCL, and these ranks communicate over gloo"),
        (["--ab", "auto", "nonsense"], 'unknown nccl "nonsense"'),
        (["--ab", "auto", "low_memory", "nccl=auto"], "both choose presets"),
        (["train.steps=3"], "train.steps=3 changes no collective"),
        (["launcher.backend=nccl", "launcher.device=cpu"], "launcher.backend=nccl needs a GPU"),
        (["--op", "all_reduc"], "did you mean all_reduce?"),
        (["--min-size", "4X"], "'4X' is not a message size"),
        (["--html", "/nowhere/at/all.html"], "there is no folder"),
        (["--repeats", "0"], "'0' is not a whole number from 1 to 1,000"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "comm", *arguments]) == 2
    out, error = capsys.readouterr()
    assert text in error and error.count("\n") == 1 and out == ""


def test_help_needs_no_torch() -> None:
    for arguments in (["bench"], ["bench", "comm", "--help"]):
        code = (
            "import sys; from dtk.commands.main import main\n"
            f"try: main({arguments})\nfinally: assert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=ROOT)
        assert done.returncode == 0 and "comm" in done.stdout, done.stderr


@pytest.mark.extended
@pytest.mark.timeout(200)
def test_under_torchrun_rank_0_reports_for_all(presets: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    options = ["--op", "all_reduce", "--ab", "one", "two", "--config-dir", str(presets), "--repeats", "1", "--json"]
    done = bench(*SMALL, *options, launcher=launcher)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["world_size"] == 2 and len(output["results"]) == 4 and output["failure"] is None


def ranks_of(process: "subprocess.Popen[str]") -> dict[int, psutil.Process]:
    """Rank -> process, once all are there."""
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        children = psutil.Process(process.pid).children(recursive=True)
        result = {int(child.environ()["RANK"]): child for child in children if "dtk.bench.rank" in child.cmdline()}
        if len(result) == 2:
            return result
        time.sleep(0.2)
    raise AssertionError("the ranks did not start")


@pytest.mark.extended
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "launcher", [(), ("-m", "torch.distributed.run", "--nproc-per-node", "2")], ids=["", "torchrun"]
)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_is_one_line(launcher: tuple[str, ...], victim: int) -> None:
    arguments = ["--op", "all_reduce", "--max-size", "64K", "--seconds", "600", "--repeats", "1000"]
    process = subprocess.Popen(
        [sys.executable, *launcher, "-m", "dtk", "bench", "comm", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(OMP_NUM_THREADS="1"),
    )
    try:
        ranks = ranks_of(process)
        os.kill(ranks[victim].pid, signal.SIGKILL)
        _, error = process.communicate(timeout=stretched(60))
    finally:
        process.kill()
    lines = [line for line in error.splitlines() if line.startswith("dtk: rank")]
    assert len(lines) == 1 and lines[0].startswith(f"dtk: rank {victim} was killed by SIGKILL"), error
    assert process.returncode == 1
    assert not ranks[1 - victim].is_running() or ranks[1 - victim].status() == psutil.STATUS_ZOMBIE
