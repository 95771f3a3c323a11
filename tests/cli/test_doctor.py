"""`dtk doctor` as it is typed: options, output, exit codes, and on two nodes under torchrun."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from dtk.commands.main import main
from dtk.doctor.registry import BETWEEN, CHECKS, topics
from tests import nvml_stub
from tests.cli.command import ROOT, environment
from tests.dist.ranks import free_port
from tests.patience import stretched
from tests.unit.doctor import shim

QUICK = "python,limits,hostname,space"
COMMAND = [sys.executable, "-m", "dtk", "doctor"]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """As if nobody had started this process as a rank."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR", "MASTER_PORT", "NVML_STUB"):
        monkeypatch.delenv(name, raising=False)


def doctor(capsys, *arguments):
    code = main(["doctor", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_text(capsys, tmp_path):
    code, out, error = doctor(capsys, "--only", QUICK, "--runs-folder", tmp_path)
    assert (code, error) == (0, "")
    assert re.search(r"^ok +python +Python 3\.\d+", out, re.MULTILINE)
    assert re.search(r"\d+ ok, 0 not applicable \(\d+\.\d s\)\n$", out)
    assert "\x1b" not in out


def test_json_and_nothing_else(capsys, tmp_path):
    code, out, _ = doctor(capsys, "--only", QUICK, "--runs-folder", tmp_path, "--json")
    report = json.loads(out)
    assert (code, report["exit_code"], report["schema"], report["between"]) == (0, 0, "dtk.doctor/1", [])
    (node,) = report["nodes"]
    checks = {check["name"]: check for check in node["checks"]}
    assert list(checks) == ["python", "shm", "memlock", "files", "processes", "memory", "hostname", "space"]
    assert checks["space"]["measures"]["folder"] == str(tmp_path)
    assert set(checks["space"]) == {
        "name", "topic", "status", "summary", "details", "remedies", "measures", "common", "seconds",
    }  # fmt: skip


def test_a_failure_is_exit_code_1_with_the_command_to_type(capsys, tmp_path, monkeypatch):
    (tmp_path / "runs").write_text("a file")
    code, out, _ = doctor(capsys, "--only", "space", "--runs-folder", tmp_path / "runs")
    assert code == 1
    assert re.search(r"^FAILURE +space +.*is a file", out, re.MULTILINE)
    assert "fix: put the runs on another disk" in out
    assert "dtk run runs_folder=FOLDER" in out
    assert "1 failure" in out.splitlines()[-1]


def test_what_does_not_apply_says_why(capsys, tmp_path):
    code, out, _ = doctor(capsys, "--only", "clocks,ecc,pcie", "--runs-folder", tmp_path)
    if "Stub" in out or " ok " in out:
        pytest.skip("a GPU is here")
    assert code == 0
    assert re.search(r"n/a +3 checks +no NVIDIA GPU here \(.+\) \(clocks, ecc, pcie\)", out)
    _, long, _ = doctor(capsys, "--only", "clocks,ecc,pcie", "-v")
    assert len(re.findall(r"^n/a ", long, re.MULTILINE)) == 3


def test_only_and_skip(capsys, tmp_path):
    code, out, _ = doctor(capsys, "--only", "limits", "--only=python", "--skip", "shm,memory,files", "--json")
    assert code in (0, 1)
    names = [check["name"] for check in json.loads(out)["nodes"][0]["checks"]]
    assert names == ["python", "memlock", "processes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "disc"], 'there is no check "disc" - did you mean disk?'),
        (["--skip", "qqqqq"], 'there is no check "qqqqq" - dtk doctor --list names all'),
        (["--only", ""], 'there is no check ""'),
        (["--only", "python", "--skip", "versions"], "no check is left"),
        (["--port", "0"], "is not a whole number from 1 to 65,535"),
        (["--port", "http"], "is not a whole number from 1 to 65,535"),
        (["--timeout-s", "1"], "is not a whole number from 10 to 3,600"),
        (["--runs-folder", ""], "--runs-folder names no folder"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["disk"], "unrecognized arguments: disk"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, arguments, said):
    code, out, error = doctor(capsys, *arguments)
    assert (code, out) == (2, "")
    assert error.startswith("dtk: ")
    assert said in error
    assert error.count("\n") == 1


def test_what_lies_between_nodes_does_not_apply_to_one(capsys):
    code, out, _ = doctor(capsys, "--only", "nodes")
    assert code == 0
    assert re.search(r"n/a +3 checks +there is only one node .*\(agreement, clock, reach\)", out)


def test_half_a_launcher_is_wrong_input(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, error = doctor(capsys, "--only", "python")
    assert code == 2
    assert "unset RANK WORLD_SIZE" in error


def test_the_list_names_everything(capsys):
    code, out, _ = doctor(capsys, "--list")
    assert code == 0
    rows = [line.split()[:2] for line in out.splitlines()[1:]]
    assert [name for _, name in rows] == [*(check.name for check in CHECKS), *BETWEEN]
    assert list(dict.fromkeys(topic for topic, _ in rows)) == topics()
    _, out, _ = doctor(capsys, "--list", "--only", "disk", "--json")
    assert [row["name"] for row in json.loads(out)] == ["space", "fsync"]


def test_the_guide_names_every_check():
    guide = (ROOT / "docs" / "doctor.md").read_text()
    for name in [*(check.name for check in CHECKS), *BETWEEN]:
        assert f"`{name}`" in guide, name


def run(*arguments, **more):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], env=environment(**more), capture_output=True, text=True, timeout=100
    )


@pytest.mark.timeout(60)
def test_help_and_the_rest_work_without_torch(tmp_path):
    """An environment with what the base install brings, and nothing else."""
    for module in ("rich", "pygments", "markdown_it", "mdurl", "msgspec", "yaml", "packaging"):
        (tmp_path / module).symlink_to(Path(find_spec(module).origin).parent)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])

    def run(*arguments, **more):
        command = [sys.executable, "-S", "-m", "dtk", "doctor", *arguments]
        return subprocess.run(
            command, env={**os.environ, **more}, capture_output=True, text=True, timeout=stretched(50)
        )

    help_text = run("--help", PYTHONPATH=path)
    assert help_text.returncode == 0, help_text.stderr
    assert "exit code: 0 ready" in help_text.stdout
    done = run("--skip", "space,fsync", "--json", PYTHONPATH=path)
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["nodes"][0]["checks"]}
    assert checks["torch"]["summary"] == "torch is not installed"
    assert checks["config"]["summary"] == "hydra-core is not installed"
    assert checks["files"]["status"] in ("ok", "warning")
    assert checks["collectives_gloo"]["status"] == "not_applicable"
    assert not any("the check itself failed" in check["summary"] for check in checks.values())


@pytest.mark.timeout(60)
def test_throttling_through_the_real_library(tmp_path):
    pytest.importorskip("pynvml")
    nvml_stub.build(tmp_path)
    answers = nvml_stub.script(tmp_path / "answers", **{"1.throttle": 0x40, "1.celsius": 93})
    more = {"LD_LIBRARY_PATH": str(tmp_path), "NVML_STUB": str(answers)}
    done = run("--only", "gpus", "--skip", "xid", **more)
    assert done.returncode == 1, done.stderr
    assert "GPU 1 is throttled: hardware_thermal at 93 C" in done.stdout
    assert "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i 1" in done.stdout


@pytest.mark.timeout(60)
def test_colours_and_progress_on_a_terminal_only(tmp_path):
    parent, terminal = pty.openpty()
    command = [*COMMAND, "--only", "python,collectives", "--runs-folder", str(tmp_path)]
    process = subprocess.Popen(
        command, env={**environment(), "TERM": "xterm", "NO_COLOR": ""}, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    seen = b""
    with suppress(OSError):  # How the end of a terminal is told.
        while part := os.read(parent, 4096):
            seen += part
    os.close(parent)
    assert process.wait(stretched(30)) == 0
    assert b"dtk: checking collectives_gloo ..." in seen
    assert re.search(rb"\x1b\[32mok", seen)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_child_behind(tmp_path, number, code):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = subprocess.Popen(
        [*COMMAND, "--only", "torch"], env=environment(PYTHONPATH=path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    ends_s = time.monotonic() + 40
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < ends_s
        time.sleep(0.05)
    child = int((tmp_path / "pid").read_text())
    process.send_signal(number)
    _, error = process.communicate(timeout=stretched(30))
    assert process.returncode == code, error
    assert b"Traceback" not in error
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


# Several nodes


def torchrun(nodes, ranks, *arguments, of_node=None, timeout_s=150):
    port = free_port()
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--node-rank={node}"),
                *(f"--nproc-per-node={ranks}", "--rdzv-backend=static", f"--rdzv-endpoint=127.0.0.1:{port}"),
                *("--master-addr=127.0.0.1", f"--master-port={port}", "-m", "dtk", "doctor", *arguments),
            ],
            env=environment(OMP_NUM_THREADS="1", **((of_node or {}).get(node, {}))),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(nodes)
    ]
    try:
        text = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], text


@pytest.mark.extended
@pytest.mark.timeout(240)
def test_two_nodes_that_are_alike():
    codes, text = torchrun(2, 2, "--only", "limits,hostname,nodes,collectives", "--json", "--timeout-s", "90")
    report = json.loads(text[0][0])
    assert text[1][0] == "", "rank 0 alone prints"
    assert [node["node"] for node in report["nodes"]] == [0, 1]
    between = {check["name"]: check for check in report["between"]}
    assert set(between) == {"agreement", "clock", "reach", "collectives_gloo"}
    assert {check["status"] for check in between.values()} == {"ok"}, between
    assert between["collectives_gloo"]["measures"]["ranks"] == 4
    expected = 1 if report["status"] == "failure" else 0  # The host name of a test machine may be loopback's.
    assert codes == [expected, expected], text


@pytest.mark.extended
@pytest.mark.timeout(240)
def test_two_nodes_that_differ(tmp_path):
    """Node 1 has an older driver, a throttled device, a clock 4 s ahead and a variable of its own."""
    pytest.importorskip("pynvml")
    nvml_stub.build(tmp_path)
    clock = shim.build(tmp_path, "clock", shim.WRONG_CLOCK)
    for node, answers in enumerate(({}, {"driver": "550.54", "0.throttle": 0x40})):
        nvml_stub.script(tmp_path / f"answers{node}", **answers)
    of_node = {
        node: {"LD_LIBRARY_PATH": str(tmp_path), "NVML_STUB": str(tmp_path / f"answers{node}")} for node in range(2)
    }
    of_node[1] |= {"LD_PRELOAD": str(clock), "CLOCK_AHEAD_S": "4", "NCCL_DEBUG": "INFO"}
    codes, text = torchrun(2, 1, "--only", "gpus,throttling,nodes", of_node=of_node)
    out = text[0][0]
    assert codes == [1, 1], text
    assert re.search(r"^node 0: .*\nok +devices", out, re.MULTILINE), out
    assert re.search(r"^node 1: .*\n", out, re.MULTILINE)
    assert "GPU 0 is throttled: hardware_thermal" in out
    assert "NVIDIA driver: 580.65.06 on node 0; 550.54 on node 1" in out
    assert "NCCL_DEBUG: (not set) on node 0; INFO on node 1" in out
    assert re.search(r"the clock of node 1 is (3\.9|4\.0)\d+ s ahead of that of node 0", out)
    assert re.search(r"\d+ failures, .* on 2 nodes", out)


@pytest.mark.extended
@pytest.mark.timeout(150)
def test_ranks_that_do_not_meet():
    """Rank 0 names rank 1, which is not there; a rank 1 that finds no rank 0 says so in one line."""
    ports = [free_port(), free_port()]
    processes = [
        subprocess.Popen(
            [*COMMAND, "--only", "python", "--timeout-s", "10"],
            env=environment(
                RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[rank])
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (out, _), (_, lost) = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [1, 2]
    assert "ranks that never joined: 1" in out
    assert lost.startswith(f"dtk: rank 1 cannot reach 127.0.0.1 port {ports[1]}: Connection refused - check")
    assert lost.count("\n") == 1
