from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits


def steps(count: int, dated: bool = True) -> str:
    at = "2026-03-14 09:{:02}:{:02},000 - INFO - "
    return "".join(
        f"{at.format(n // 60, n % 60) if dated else ''}step {n} loss {4 - n / 100:.3f}\n" for n in range(count)
    )


def traceback(outer: str = "upload", last: str = "ConnectionError: upload failed") -> str:
    return f'Traceback (most recent call last):\n  File "/job/up.py", line 9, in {outer}\n    put(x)\n{last}\n'


WARNED = "2026-03-14 09:00:40,000 - train - {} - checkpoint upload {}\n"
LOGGED = WARNED.format("ERROR", "failed") + traceback()
END = "Training finished\n"


def of(folder: Path, errors: str, output: str, names: tuple[str, str] = ("job.err", "job.out")) -> list[str]:
    for name, text in zip(names, (errors, output), strict=True):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    return [error.type for error in gather(folder, Limits()).errors]


@pytest.mark.parametrize(
    "names",
    [
        ("job.err", "job.out"),
        ("slurm-5.err", "slurm-5.out"),
        ("stderr.log", "stdout.log"),
        ("err.log", "out.log"),
        ("rank0.err", "rank0.out"),
        ("job-2_error.txt", "job-2_output.txt"),
        ("job.e412", "job.o412"),
        ("logs/attempt_0/1/stderr.log", "logs/attempt_0/1/stdout.log"),
    ],
)
def test_later_steps_of_the_same_process_show_that_it_survived(tmp_path: Path, names: tuple[str, str]) -> None:
    assert of(tmp_path, LOGGED, steps(90), names) == []
    assert [f.kind for f in gather(tmp_path, Limits()).facts if f.file == names[0]].count("handled_error") == 1


@pytest.mark.parametrize(
    ("errors", "output"),
    [
        (LOGGED, steps(44)),
        ("".join(f"[rank3]: {line}\n" for line in LOGGED.splitlines()), steps(99)),
        (traceback() + WARNED.format("WARNING", "slow"), steps(90)),  # Dated below.
        (traceback(), steps(40, dated=False) + END),
        (traceback(last="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), steps(40) + END),
    ],
)
def test_so_does_the_end_of_the_training(tmp_path: Path, errors: str, output: str) -> None:
    assert of(tmp_path, errors, output) == []
    assert not diagnose(tmp_path).root_causes


@pytest.mark.parametrize(
    ("errors", "output"),
    [
        (LOGGED, steps(43)),  # It is nearly the last that happened.
        (traceback(), steps(90)),  # Not dated.
        (LOGGED, steps(90, dated=False)),
        (WARNED.format("INFO", "ok") + traceback(), steps(90)),  # What a handler does not say may be long before.
        (LOGGED.replace("in upload", "in <module>"), steps(41)),
        (traceback("<module>"), steps(40) + END),  # As the interpreter prints what ended it.
        (traceback(), "Training tokenizer finished\n" + steps(40)),
        (traceback() + "srun: error: node2: task 3: Exited with exit code 1\n", steps(40) + END),
        ("".join(f"[rank3]: {line}\n" for line in LOGGED.splitlines()), steps(60)),  # Its peers may get so far.
    ],
)
def test_what_ended_the_process_stays(tmp_path: Path, errors: str, output: str) -> None:
    assert "ConnectionError" in of(tmp_path, errors, output)


def test_another_process_shows_nothing(tmp_path: Path) -> None:
    assert of(tmp_path, LOGGED, steps(90) + END, ("job-2.err", "job-3.out")) == ["ConnectionError"]
    assert of(tmp_path / "b", LOGGED, steps(90) + END, ("0/stderr.log", "1/stdout.log")) == ["ConnectionError"]
