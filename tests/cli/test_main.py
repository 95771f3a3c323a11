"""The `dtk` command as one types it: exact lines, exit codes, no torch where none is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from diagnostics.contract.formatting import command
from diagnostics.report import lines
from diagnostics.report.runs import listing
from diagnostics.runs.find import find_run, list_runs
from diagnostics.runs.records import last_metrics
from dtk.commands.main import main
from dtk.extras import install
from tests.cli.command import environment
from tests.work import calls_in

ROOT = Path(__file__).parents[2]


def dtk(*arguments: str, cwd: Path = ROOT, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command; modules in `blocked` are as if they were not installed."""
    code = (
        "import sys, importlib.util as u\n"
        f"blocked = {blocked!r}\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked: raise ModuleNotFoundError(name=name)\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name.split('.')[0] in blocked else find(name, package)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from dtk.commands.main import main\n"
        "code = main()\n"
        "loaded = [m for m in ('torch', 'hydra', 'yaml', 'numpy', 'rich') if m in sys.modules]\n"
        "print('LOADED', *loaded, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        check=False,
    )


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: finished, failed, and one whose status is torn."""
    folder = tmp_path / "runs"
    good = RunPaths(folder / "20260102-000000-gpt2_tiny-ddp-w2-aaaa")
    write_json(good.status, Status(state="finished", exit_code=0, step=10, started="2026-01-02T00:00:00+00:00"))
    write_json(good.summary, {"schema_version": 1, "figures": {"loss": 2.5, "tokens_per_s": 12345.6}})
    good.metrics.write_text(
        '{"step": 9, "loss": 2.6}\n{"step": 10, "loss": 2.5, "tokens_per_s": 12000.0}\n'
        '{"step": 10, "validation_loss": 2.7}\n{"step": 11, "lo'
    )
    good.overrides.write_text("- strategy=ddp\n- train.steps=10\n")
    for rank in (0, 1):
        write_json(good.heartbeat(rank), {})
    bad = RunPaths(folder / "20260101-000000-gpt2-fsdp-w4-bbbb")
    failure = Failure(rank=3, reason="killed by SIGKILL", step=7, region="backward", log="logs/attempt_0/rank_00003")
    status = Status(
        state="failed", exit_code=1, reason="rank 3: killed", started="2026-01-01T00:00:00+00:00", failure=failure
    )
    write_json(bad.status, status)
    torn = folder / "20251231-000000-[red]x-single-w1-cccc"
    torn.mkdir()
    (torn / "status.json").write_text('{"state": "runn')
    os.utime(torn, (0, 0))
    (folder / "not_a_run").mkdir()
    return folder


def test_help_loads_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "dtk", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "strategies" in done.stdout
    assert dtk().stderr == "LOADED\n"


def test_ctrl_c_before_the_run_has_begun_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from dtk import run

    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run", interrupted)
    assert run.main(["strategy=ddp"]) == 130
    assert capsys.readouterr().err == "dtk: stopped before the first step\n"


def test_version() -> None:
    from dtk import __version__

    assert dtk("--version").stdout == f"dtk {__version__}\n"


@pytest.mark.parametrize("missing", ["torch", "hydra"])
def test_run_without_the_extra_says_what_to_install(missing: str) -> None:
    done = dtk("run", "strategy=ddp", blocked=(missing,))
    assert done.returncode == 2
    # The parser of YAML is loaded where bytecode cannot be kept: dtk's own tables are parsed then.
    needs = f"dtk: dtk run needs the training extra - {install('train')}\n"
    assert done.stderr.removesuffix(" yaml\n").rstrip() == f"{needs}LOADED"


def test_reading_works_in_the_base_install(runs: Path) -> None:
    blocked = ("torch", "hydra", "omegaconf", "numpy", "wandb")
    for arguments in (["ls", str(runs)], ["show", str(runs / "20260101-000000-gpt2-fsdp-w4-bbbb")], ["strategies"]):
        done = dtk(*arguments, blocked=blocked)
        assert done.returncode == 0, done.stderr


def test_strategies_as_markdown() -> None:
    done = dtk("strategies", "--markdown")
    assert done.stdout.startswith("| strategy |") and "| zero1 |" in done.stdout


def test_ls_newest_first_and_damaged_ones_too(runs: Path) -> None:
    done = dtk("ls", str(runs))
    assert done.returncode == 0 and done.stderr == "LOADED\n"
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:5] for line in lines] == [
        ["run", "state", "steps", "loss", "tokens/s"],
        ["20260102-000000-gpt2_tiny-ddp-w2-aaaa", "finished", "10", "2.5000", "12,346"],
        ["20260101-000000-gpt2-fsdp-w4-bbbb", "failed", "-", "-", "-"],
        ["20251231-000000-[red]x-single-w1-cccc", "damaged", "-", "-", "-"],
    ]


def test_ls_of_nothing(tmp_path: Path) -> None:
    done = dtk("ls", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "") and done.stderr.startswith(f"no runs in {tmp_path} yet")
    done = dtk("ls", str(tmp_path / "no"))
    assert done.returncode == 2
    why = "No such file or directory"
    assert done.stderr.startswith(f"dtk: cannot list {tmp_path / 'no'}: {why} - {command('ls')} FOLDER\n")


def test_show_a_failed_run_by_its_beginning(runs: Path) -> None:
    done = dtk("show", "20260101", cwd=runs.parent)
    assert done.returncode == 0
    assert "state   failed (attempt 0, exit code 1)" in done.stdout
    assert "failure rank 3 at step 7 in backward: killed by SIGKILL" in done.stdout
    assert "log     runs/20260101-000000-gpt2-fsdp-w4-bbbb/logs/attempt_0/rank_00003" in done.stdout


def test_show_a_finished_run_as_json(runs: Path) -> None:
    output = json.loads(dtk("show", "--json", str(runs / "20260102-000000-gpt2_tiny-ddp-w2-aaaa")).stdout)
    assert output["run"]["state"] == "finished" and output["summary"]["tokens_per_s"] == 12345.6
    assert output["last_metrics"] == {"step": 10, "loss": 2.5, "tokens_per_s": 12000.0}
    assert output["overrides"] == ["strategy=ddp", "train.steps=10"]
    assert output["recorded"] == {"heartbeat": 2}


def test_show_a_damaged_run(runs: Path) -> None:
    done = dtk("show", "20251231", cwd=runs.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "dtk: runs/20251231-000000-[red]x-single-w1-cccc is damaged: status.json: Unterminated"
    )
    assert "diagnose 'runs/20251231-000000-[red]x-single-w1-cccc' reads what is left of it\n" in done.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nope", 'dtk: there is no run "nope" here or in runs'),
        (
            "not_a_run",
            "dtk: runs/not_a_run is not a run folder: it has neither status.json nor manifest.json",
        ),
        (
            "2026",
            'dtk: several runs begin with "2026": 20260101-000000-gpt2-fsdp-w4-bbbb, '
            "20260102-000000-gpt2_tiny-ddp-w2-aaaa",
        ),
    ],
)
def test_show_what_is_not_there(runs: Path, name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = dtk("show", name, cwd=runs.parent)
    assert done.returncode == 2
    monkeypatch.chdir(runs.parent)
    assert done.stderr.splitlines()[0] == f"{expected} - give a path, a run id or last; {command('ls')} lists the runs"


def test_untrusted_text_neither_colours_nor_moves_the_cursor(runs: Path) -> None:
    evil = RunPaths(runs / "evil")
    write_json(evil.status, Status(state="failed", reason="[bold]x\x1b[2J\rgone\n", started="2026-01-03T00:00:00Z"))
    shown = dtk("show", "evil", cwd=runs.parent).stdout
    assert "reason  [bold]x\\x1b[2J\\rgone\\n" in shown and "\x1b" not in shown
    coloured = lines.render(listing(list_runs(runs)), columns=120, colour=True)
    assert "[red]x" in coloured and "\x1b[32mfinished" in coloured


def test_garbage_in_every_file_is_damaged_not_fatal(tmp_path: Path, capsys: Any) -> None:
    for i, garbage in enumerate(
        [b"", b"[]", b'"x"', b"\xff\xfe\x00", b"{" * 5000, b'{"state": 3, "failure": 7}', b"null"]
    ):
        run = tmp_path / f"run{i}"
        run.mkdir()
        for name in ("status.json", "summary.json", "metrics.jsonl", "manifest.json", "overrides.yaml"):
            (run / name).write_bytes(garbage)
        done_run = [r for r in list_runs(tmp_path) if r.id == run.name]
        assert len(done_run) == 1 and done_run[0].loss is None
        assert done_run[0].state == "damaged", garbage
        assert main(["show", str(run)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_running_run_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    import socket

    paths = RunPaths(tmp_path / "r")
    write_json(paths.status, Status(state="running"))
    write_json(paths.manifest, {"pid": os.getpid(), "host": socket.gethostname()})
    assert list_runs(tmp_path)[0].state == "running"
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    write_json(paths.manifest, {"pid": done.pid, "host": socket.gethostname()})
    assert list_runs(tmp_path)[0].state == "lost"
    write_json(paths.manifest, {"pid": done.pid, "host": "elsewhere"})
    assert list_runs(tmp_path)[0].state == "running"


def test_the_end_of_a_long_metrics_file_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {i}, "loss": 1.0}}\n' for i in range(20_000)))
    assert last_metrics(str(path), [])["step"] == 19_999


def test_listing_is_linear(tmp_path: Path) -> None:
    for i in range(300):
        paths = RunPaths(tmp_path / f"run-{i:04d}")
        write_json(paths.status, Status(state="finished", step=i))
        paths.metrics.write_text('{"step": 1, "loss": 1.0}\n' * 3000)
    result, calls = calls_in(lambda: list_runs(tmp_path))
    assert len(result) == 300
    assert calls < 100_000


def test_find_run_prefers_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(RunPaths(tmp_path / "runs" / "a").status, Status(state="running"))
    assert find_run("runs/a") == Path("runs/a")
    assert find_run("a") == Path("runs/a")


@pytest.mark.parametrize("typed", [["bench", "comm"], ["run", "experiment=smoke"]])
def test_a_torch_that_cannot_be_imported_is_one_line(typed: list[str], tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('raise RuntimeError("broken on purpose")\n')
    broken = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    shown = subprocess.run(
        [sys.executable, "-m", "dtk", *typed], cwd=tmp_path, env=broken, capture_output=True, text=True
    )
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("dtk: torch cannot be imported: RuntimeError: broken on purpose")
    assert shown.stderr.count("\n") == 1
