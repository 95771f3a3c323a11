"""`dtk preflight`: options that cannot be combined, and the exit code of what was predicted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dtk.commands.main import main
from dtk.preflight import report, run


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--", "x"], "arguments after -- belong to a script"),
        (["--steps", "0"], "--steps 0 is for scripts"),
        (["strategy=ddp", "--script", "SCRIPT"], "'strategy=ddp' applies to dtk jobs"),
        (["--script", "absent.py"], "there is no script absent.py"),
        (["--script", "SCRIPT", "--what-if"], "--what-if needs a dtk job"),
        (["--script", "SCRIPT"], "a script does not declare its number of ranks"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert main(["preflight", *(str(script) if word == "SCRIPT" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


@pytest.mark.parametrize(("text", "why"), [(b"for i in x\n", "line 1"), (b"\x00\x01", "null bytes")])
def test_a_script_that_is_not_python_is_refused_before_any_rank_is_simulated(
    text: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(text)
    assert main(["preflight", "--script", str(script), "--world-size", "2"]) == 2
    error = capsys.readouterr().err
    assert "train.py is not valid Python" in error and why in error and error.count("\n") == 1


@pytest.mark.parametrize(("ends", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_all_ranks_end(
    ends: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[Any] = []
    simple_namespace = SimpleNamespace(verdict=SimpleNamespace(ends=ends))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(run, "preflight", lambda request, show: (requests.append(request), simple_namespace)[1])
    monkeypatch.setattr(report, "as_json", lambda prediction: {"ends": prediction.verdict.ends})
    assert main(["preflight", "strategy=ddp", "--world-size", "4", "--rank-timeout-s", "7", "--json"]) == code
    assert f'"ends": {str(ends).lower()}' in capsys.readouterr().out
    assert (requests[0].overrides, requests[0].world_size, requests[0].limit_s) == (("strategy=ddp",), 4, 7.0)
