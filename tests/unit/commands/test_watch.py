"""What `dtk watch` refuses before it runs anything, and the folder that it makes."""

import re
from pathlib import Path

import pytest

from dtk.commands.main import main
from dtk.commands.watch import make_folder
from dtk.errors import DtkError


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no command is given - dtk watch -- torchrun --nproc-per-node=2 train.py"),
        (["--"], "no command is given"),
        (
            ["torchrun", "--nproc", "2", "a b.py"],
            "the command to watch must follow -- - dtk watch -- torchrun --nproc 2 'a b.py'",
        ),
        (["--", "dtk", "run", "strategy=ddp", "a=b c"], "dtk run has its own watch - dtk run strategy=ddp 'a=b c'"),
        (["--", "no-such-program"], 'there is no command "no-such-program" - the arguments after -- are run as given'),
        (["--", "train.py", "--x"], 'there is no command "train.py" - dtk watch -- python train.py --x'),
        (["--stall-timeout-s", "0", "--", "true"], "argument --stall-timeout-s: '0' is not a number above 0"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["watch", *argv]) == 2
    assert capsys.readouterr().err.startswith(f"dtk: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"], "nothing was made"


def test_a_folder_of_ones_own_below_the_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (make_folder(None, Path("usual"), "flight") for _ in range(2))
    assert first != second and first.parent == tmp_path / "usual" and first.is_dir()
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", first.name)


def test_nodes_share_a_folder_until_it_holds_records(tmp_path: Path) -> None:
    chosen = tmp_path / "a" / "job"
    assert make_folder(chosen, Path("usual"), "flight", 0o700) == make_folder(chosen, Path("usual"), "flight") == chosen
    assert chosen.stat().st_mode & 0o777 == 0o700
    (chosen / "flight").mkdir()
    with pytest.raises(DtkError, match="already holds the records of a job - choose another --folder"):
        make_folder(chosen, Path("usual"), "flight")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DtkError, match=r"cannot make .*file/job: (Not a directory|File exists)"):
        make_folder(tmp_path / "file" / "job", Path("usual"), "flight")
    with pytest.raises(DtkError, match=r"cannot make .*file"):
        make_folder(tmp_path / "file", Path("usual"), "flight")
