"""Faults of jobs that know nothing of dtk: plain PyTorch scripts that really fail, diagnosed from what they print."""

import socket
from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import Decided, diagnose
from tests.cli.command import ROOT, environment
from tests.patience import stretched
from tests.warm_python import run_module, run_modules

pytestmark = pytest.mark.timeout(200)
JOBS = Path(__file__).with_name("jobs")
LIMIT_S = 40


def run(log: Path, *words: str, job: str = "train") -> int:
    """Run a script as one process whose output goes to a file; return its exit code."""
    done = run_module([f"tests.faults.jobs.{job}", *words], environment(OMP_NUM_THREADS="1"), ROOT, stretched(LIMIT_S))
    log.parent.mkdir(exist_ok=True)
    log.write_text(done.stdout + done.stderr)
    return done.returncode


def run_ranks(folder: Path, *words: str, job: str = "train") -> list[int]:
    """Run a script as two ranks with a file each; return their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [([f"tests.faults.jobs.{job}", *words], environment(RANK=f"{n}", **group)) for n in range(2)]
    done = run_modules(ranks, ROOT, stretched(LIMIT_S))
    folder.mkdir(exist_ok=True)
    for rank, process in enumerate(done):
        (folder / f"rank_{rank}.log").write_text(process.stdout + process.stderr)
    return [process.returncode for process in done]


def causes(folder: Path) -> list[str]:
    return [root.cause for root in diagnose(folder).root_causes]


def line(marker: str) -> int:
    """Return the line of the training script that ends in a comment."""
    lines = (JOBS / "train.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(marker))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a healthy run: its log, and its checkpoint beside it."""
    folder = tmp_path_factory.mktemp("first") / "run"
    assert run(folder / "first.log", "--save", str(folder.parent / "step_150.pt")) == 0
    assert not causes(folder)
    return folder


def resumed(first: Path, to: Path, *words: str) -> Decided:
    """Resume that run; return the diagnosis of both logs."""
    assert run(to / "second.log", "--resume", str(first.parent / "step_150.pt"), "--steps", "40", *words) == 0
    (to / "first.log").write_bytes((first / "first.log").read_bytes())
    return diagnose(to)


@pytest.mark.parametrize(
    ("words", "marker", "text"),
    [
        (("--hidden", "96"), "# loads: module", "body.0.weight has [64, 32] in the checkpoint and [96, 32]"),
        (("--fault", "wrapper"), "# loads: wrapper", "The model's keys begin with 'module.'"),
        (("--optimizer", "AdamW"), "# loads: parts", "KeyError: 'step'"),
    ],
)
def test_a_checkpoint_of_another_model_or_optimizer(
    first: Path, tmp_path: Path, words: tuple[str, ...], marker: str, text: str
) -> None:
    checkpoint = str(first.parent / "step_150.pt")
    assert run_ranks(tmp_path / "job", "--resume", checkpoint, "--steps", "2", *words) == [1, 1]
    (root,) = diagnose(tmp_path / "job").root_causes
    assert (root.cause, root.ranks) == ("checkpoint.mismatch", (0, 1))
    assert [(Path(at.file).name, at.line) for at in root.where] == [("train.py", line(marker))]
    assert text in text_of(root).summary


def test_the_checkpoint_of_the_same_model_loads(first: Path, tmp_path: Path) -> None:
    assert run_ranks(tmp_path / "job", "--resume", str(first.parent / "step_150.pt"), "--steps", "12") == [0, 0]
    assert not causes(tmp_path / "job")


@pytest.mark.parametrize(
    ("fault", "text"),
    [("lost_weights", "the weights were not loaded"), ("lost_schedule", "a part of the state was not loaded")],
)
def test_a_resume_that_loses_state(first: Path, tmp_path: Path, fault: str, text: str) -> None:
    (root,) = resumed(first, tmp_path / "job", "--fault", fault).root_causes
    assert (root.cause, root.step) == ("checkpoint.lost_state", 151) and text in text_of(root).summary


def test_a_resume_that_loads_everything(first: Path, tmp_path: Path) -> None:
    assert not resumed(first, tmp_path / "job").root_causes


@pytest.mark.parametrize("steps", ["25", "150"])
def test_gradients_that_overflow_in_each_step(tmp_path: Path, steps: str) -> None:
    assert run(tmp_path / "job" / "train.log", "--fp16", "--fault", "overflow", "--steps", steps) == 0
    decided = diagnose(tmp_path / "job")
    (root,) = decided.root_causes
    assert (decided.outcome, root.cause) == ("diverged", "numeric.overflow")
    assert f"the last {int(steps) - 1} steps were skipped" in text_of(root).summary


def test_float16_without_an_overflow(tmp_path: Path) -> None:
    assert run(tmp_path / "job" / "train.log", "--fp16") == 0
    assert not causes(tmp_path / "job")


def test_a_learning_rate_that_is_suddenly_too_high(tmp_path: Path) -> None:
    assert run(tmp_path / "job" / "train.log", "--fault", "spike") == 0
    (root,) = diagnose(tmp_path / "job").root_causes
    assert (root.cause, root.step) == ("numeric.spike", 62)  # The first loss with the weights of step 61.


@pytest.mark.parametrize(("optimizer", "lr"), [("SGD", "0.3"), ("AdamW", "0.003")])
def test_a_loss_that_is_not_divided_by_the_micro_batches(tmp_path: Path, optimizer: str, lr: str) -> None:
    words = ("--optimizer", optimizer, "--lr", lr, "--accumulate", "4", "--steps", "40")
    assert run(tmp_path / "job" / "sum.log", "--fault", "sum", *words) == 0
    assert run(tmp_path / "job" / "mean.log", *words) == 0
    (root,) = diagnose(tmp_path / "job").root_causes
    assert root.cause == "numeric.normalisation"
    assert "The loss in sum.log is 4 times that in mean.log" in text_of(root).summary


def test_two_runs_that_divide_alike(first: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "job" / "four.log", "--accumulate", "4", "--steps", "40") == 0
    (tmp_path / "job" / "one.log").write_bytes((first / "first.log").read_bytes())
    assert not causes(tmp_path / "job")


def test_an_optimizer_of_a_model_that_was_replaced(first: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "job" / "frozen.log", "--fault", "frozen") == 0
    assert not causes(tmp_path / "job")  # Alone it only shows that the loss does not fall.
    (tmp_path / "job" / "learns.log").write_bytes((first / "first.log").read_bytes())
    (root,) = diagnose(tmp_path / "job").root_causes
    assert root.cause == "numeric.frozen_update" and [item.file for item in root.evidence] == ["frozen.log"]


def test_work_of_one_rank_that_takes_longer_than_the_timeout(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    assert run_ranks(tmp_path / "slow", "--work-s", "8", "--timeout-s", "4", job="prepare") == [1, 1]
    (root,) = diagnose(tmp_path / "slow").root_causes
    assert (root.cause, root.ranks, root.victims) == ("hang.timeout_budget", (0,), (1,))
    assert run_ranks(tmp_path / "quick", "--work-s", "2", "--timeout-s", "60", job="prepare") == [0, 0]
    assert not causes(tmp_path / "quick")


@pytest.mark.extended
def test_torchrun_ends_the_rank_that_works(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    torchrun = ("--standalone", "--nproc-per-node", "2", "-m", "tests.faults.jobs.prepare")
    words = ["torch.distributed.run", *torchrun, "--work-s", "60", "--timeout-s", "8"]
    done = run_module(words, environment(), ROOT, stretched(LIMIT_S))
    (tmp_path / "job.log").write_text(done.stdout + done.stderr)
    (root,) = diagnose(tmp_path / "job.log").root_causes
    assert (done.returncode, root.cause, root.ranks, root.victims) == (1, "hang.timeout_budget", (0,), (1,))


@pytest.mark.parametrize(
    ("fault", "healthy", "text"),
    [
        (("--collect",), (), "pauses for Python's garbage collection"),
        (("--compile", "--grow", "1"), ("--compile",), "pauses to compile"),
    ],
)
def test_a_host_that_pauses(tmp_path: Path, fault: tuple[str, ...], healthy: tuple[str, ...], text: str) -> None:
    assert run(tmp_path / "slow.log", str(tmp_path / "slow.json"), *fault, job="profiled") == 0
    (root,) = diagnose(tmp_path / "slow.json").root_causes
    assert root.cause == "overlap.pause" and text in text_of(root).summary
    assert run(tmp_path / "quick.log", str(tmp_path / "quick.json"), *healthy, job="profiled") == 0
    assert "overlap.pause" not in causes(tmp_path / "quick.json")
