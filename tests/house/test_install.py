"""The wheel as a user gets it: complete, working from any folder, and useful without the training extra."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from dtk.extras import install
from tests.cli.command import ROOT, TINY, metrics, only_run, status

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        find_spec("hatchling") is None or find_spec("pip") is None, reason="building the wheel needs hatchling and pip"
    ),
]
BASE = ("rich", "pygments", "markdown_it", "mdurl", "msgspec", "yaml")
"""All that the base install brings."""


def finish(*command: object, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **environment},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", folder)
    done = finish("-m", "pip", "wheel", *options, ROOT, cwd=folder)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    done = finish("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", folder, wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def run(installed: Path, cwd: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """`python -m dtk.run` of the installed package, in another folder than the source tree."""
    return finish("-m", "dtk.run", *arguments, cwd=cwd, PYTHONPATH=str(installed), OMP_NUM_THREADS="1")


def test_conf_travels_inside_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    own = {f"dtk/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert own <= set(names)
    texts = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dtk" / "console" / "help").glob("*.txt")}
    assert len(texts) > 15 and texts <= set(names), "what --help shows"
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"dtk", "diagnostics"}
    assert wheel.name.startswith("dtk_train-")


def test_composes_in_any_folder(installed: Path, tmp_path: Path) -> None:
    where = finish("-c", "import dtk; print(dtk.__file__)", cwd=tmp_path, PYTHONPATH=str(installed))
    assert Path(where.stdout.strip()).is_relative_to(installed)
    done = run(installed, tmp_path, "--cfg", "strategy=ddp", "model=gpt2")
    assert done.returncode == 0, done.stderr
    plain = yaml.safe_load(done.stdout)
    assert (plain["strategy"]["name"], plain["model"]["layers"]) == ("ddp", 12)
    assert plain["runs_folder"] == str(tmp_path / "runs")


def test_trains_with_the_users_own_files(installed: Path, tmp_path: Path) -> None:
    own = tmp_path / "my conf" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - smoke\ntrain:\n  steps: 3\n  evaluate_samples: 4\n"
    )
    done = run(installed, tmp_path, "--config-dir", "my conf", "experiment=mine", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = only_run(tmp_path / "runs")
    assert status(folder)["state"] == "finished"
    assert len([record for record in metrics(folder) if "loss" in record]) == 3
    assert done.stdout.splitlines()[-1].endswith(f"dtk show runs/{folder.name}")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a new user has: the tracked files and nothing built from them."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("dtk", "diagnostics", "conf", "pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A new virtual environment, first in PATH; what dtk requires is there by a link to where the tests have it."""
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    # Python 3.11 puts an old setuptools there, which would hide the one that torch asks for.
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True)
    here, there = sysconfig.get_paths()["purelib"], "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run([python, "-c", there], capture_output=True, text=True, check=True).stdout.strip()
    (Path(packages) / "tests.pth").write_text(f"{here}\n")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    path = f"{python.parent}:{os.environ['PATH']}"
    # pip reads the second as "no isolated build": hatchling is there as well.
    return {**kept, "PATH": path, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("command", "then"),
    [
        (
            "pip install '.[train]'",
            ["python -m dtk.run --cfg strategy=zero2", "dtk run --help"],
        ),
        ("pip install .", ["dtk ls", "dtk strategies"]),
    ],
)
def test_the_readmes_way_to_install(
    clone: Path, environment: dict[str, str], tmp_path: Path, command: str, then: list[str]
) -> None:
    readme = (ROOT / "README.md").read_text()
    assert f"\n{command} " in readme
    for line, folder in ((command, clone), *((line, tmp_path) for line in then)):
        done = subprocess.run(
            line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, done.stdout + done.stderr
    where = subprocess.run(
        ["python", "-c", "import dtk; print(dtk.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(tmp_path / "venv")


def test_make_run_as_the_readme_says(clone: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """Its own set-up too, in a clone without `.venv`: the same GPT-2, with fewer blocks for the sake of time."""
    (clone / ".venv").symlink_to(tmp_path / "venv")
    small = "model.layers=1 model.width=48 train.steps=2 train.evaluate_every=-1 checkpoint=off data.max_bytes=200000"
    command = ["make", "run", f"ARGS={small} runs_folder={tmp_path}/runs"]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    about = status(only_run(tmp_path / "runs"))
    assert about["state"] == "finished"
    assert "installing dtk and torch into .venv (once; a few minutes)" in done.stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but what the base install brings."""
    folder = tmp_path_factory.mktemp("base")
    for name in BASE:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None, name
        (folder / name).symlink_to(Path(spec.origin).parent)
    return folder


def dtk(installed: Path, base: Path, cwd: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """The console script's entry in an interpreter that sees the base install only (no site-packages)."""
    paths = [str(installed), str(base)]
    code = f"import sys; sys.path[:0] = {paths!r}\nfrom dtk.commands.main import main\nsys.exit(main())"
    return finish("-I", "-S", "-c", code, *arguments, cwd=cwd)


def test_the_base_install_really_lacks_torch(installed: Path, base: Path, tmp_path: Path) -> None:
    code = "from importlib.util import find_spec; print([find_spec(m) for m in ('torch', 'hydra', 'numpy')])"
    assert finish("-I", "-S", "-c", code, cwd=tmp_path).stdout == "[None, None, None]\n"


def test_the_base_install_reads_runs(installed: Path, base: Path, tmp_path: Path) -> None:
    trained = run(installed, tmp_path, *TINY, "train.steps=1", "launcher.nproc=1", "experiment=smoke")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    name = only_run(tmp_path / "runs").name
    for arguments, expected in (
        (["--help"], "strategies"),
        (["strategies"], "hsdp"),
        (["ls"], name),
        (["show", name], "finished"),
        (["show", "--json", name], '"tokens_per_s"'),
    ):
        done = dtk(installed, base, tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


@pytest.mark.parametrize("arguments", [["run"], ["run", "strategy=ddp"]])
def test_the_base_install_says_what_run_needs(
    installed: Path, base: Path, tmp_path: Path, arguments: list[str]
) -> None:
    done = dtk(installed, base, tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"dtk: dtk run needs the training extra - {install('train')}\n"
