import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dtk.commands.completion import SCRIPTS
from dtk.commands.main import _COMMANDS, main
from dtk.run import main as run
from tests.patience import stretched


@pytest.fixture
def completed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def words(line: str) -> list[str]:
        assert main(["completion", "bash", line]) == 0
        return capsys.readouterr().out.split()

    return words


def test_commands_and_their_options(completed):
    assert set(_COMMANDS) | {"run"} == set(completed("dtk "))
    assert completed("dtk di") == ["diagnose"]
    assert {"--json", "--baseline", "--fail-if"} <= set(completed("dtk compare a --"))
    assert completed("dtk run --mul") == ["--multirun"]
    assert completed("dtk nothing --") == ["--help", "--version"] and completed("dtk nothing x") == []


def test_groups_their_options_keys_and_values(completed):
    assert completed("dtk run strat") == ["strategy="] or "strategy=" in completed("dtk run strat")
    assert {"strategy=ddp", "strategy=fsdp"} <= set(completed("dtk run model=gpt2 strategy="))
    assert completed("dtk plan train.global_b") == ["train.global_batch_size="]
    assert completed("dtk run train.compile=") == ["train.compile=false", "train.compile=true"]
    assert completed("dtk run tracker.mode=o") == ["tracker.mode=offline", "tracker.mode=online"]
    assert completed("dtk ls strat") == []


def test_what_can_be_explained(completed):
    assert completed("dtk explain hang.cond") == ["hang.conditional_collective"]
    assert {"train", "train.clip_norm"} <= set(completed("dtk explain tra"))


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_fish_completes_values_without_file_names(tmp_path):
    (tmp_path / "dtk").write_text(f'#!/bin/sh\nexec {sys.executable} -m dtk "$@"\n')
    (tmp_path / "dtk").chmod(0o755)
    (tmp_path / "a.py").touch()
    texts = [
        f"complete -C '{line}'; echo @@" for line in ("dtk run precision=", "dtk run data.path=", "dtk diagnose a")
    ]
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"dtk completion fish | source; {'; '.join(texts)}"], capture_output=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3])},
        text=True, timeout=stretched(60),
        cwd=tmp_path,
    )  # fmt: skip
    values, files, logs = done.stdout.split("@@\n")[:3]
    assert values.split() == ["precision=bf16", "precision=fp16", "precision=fp32", "precision=tf32"], done.stderr
    assert "data.path=a.py" in files.split() and logs.split() == ["a.py"]


def test_runs(completed):
    for name in ("20260101-a", "2026$(touch x)", "2026;x", "2026 b", "2026*", "2026\x1b[31m"):
        Path("runs", name).mkdir(parents=True)
    assert completed("dtk show 2026") == ["20260101-a"]
    assert completed("dtk diagnose la") == ["last"]


@pytest.mark.parametrize("shell", [path.stem for path in SCRIPTS.iterdir()])
def test_scripts_are_printed_and_their_shell_takes_them(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"dtk completion {shell}" in script.splitlines()[0]
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    assert subprocess.run([shell, "-n"], input=script, text=True, timeout=stretched(20)).returncode == 0


def test_an_unknown_shell_is_refused_with_the_shells_only(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "(choose from 'bash', 'fish', 'zsh')" in capsys.readouterr().err


def test_bash_completes_behind_the_equals_sign(tmp_path):
    (tmp_path / "dtk").write_text(f'#!/bin/sh\nexec {sys.executable} -m dtk "$@"\n')
    (tmp_path / "dtk").chmod(0o755)
    typed = 'COMP_LINE="dtk run strategy=f"; COMP_POINT=${#COMP_LINE}; _dtk; echo "${COMPREPLY[@]}"'
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        ["bash", "-c", f'eval "$(dtk completion bash)"; {typed}'], capture_output=True, text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": root}, cwd=tmp_path, timeout=stretched(60),
    )  # fmt: skip
    assert done.stdout.split() == ["fsdp"], done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--config-name", "mine"], "--config-name mine: there is no "),
        (["-cp", "x", "--cfg"], "the configuration folder x: there is no such folder"),
        (["--resolve"], "dtk run has no --resolve: the configuration is always resolved - use --cfg"),
        (["--cfg", "hydra"], "--cfg hydra prints nothing"),
        (["hydra.sweeper.params={}"], "use -m with lists, typed or as hydra.sweeper.params of a file"),
    ],
)
def test_where_dtk_differs_from_hydra_the_error_says_what_to_use(words, expected, capsys):
    assert run(words) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1


@pytest.mark.parametrize("words", [["--cfg", "job"], ["--cfg", "all"], ["-c", "job"], ["--cfg"]])
def test_the_configuration_is_printed_as_hydra_would(words, capsys):
    assert run([*words, "strategy=ddp"]) == 0
    assert "name: ddp" in capsys.readouterr().out
