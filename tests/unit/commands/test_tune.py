"""`dtk tune TOPIC`: the request that is made of the options, and the exit code."""

from types import SimpleNamespace
from typing import Any

import pytest

from dtk.commands.main import main
from dtk.errors import INTERRUPTED
from dtk.tune import make, model


@pytest.mark.parametrize(
    ("interrupted", "measured", "code"), [(False, True, 0), (False, False, 1), (True, True, INTERRUPTED)]
)
def test_the_exit_code_says_whether_the_question_was_answered(
    interrupted: bool,
    measured: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests: list[Any] = []
    simple_namespace = SimpleNamespace(interrupted=interrupted, measured=measured)
    monkeypatch.setattr(make, "make", lambda request, show: (requests.append(request), simple_namespace)[1])
    monkeypatch.setattr(model, "as_json", lambda result: {})
    assert main(["tune", "bucket", "strategy=ddp", "--values", "5, 25", "--repeats", "4", "--json"]) == code
    capsys.readouterr()
    request = requests[0]
    assert (request.topic, request.overrides, request.values) == ("bucket", ("strategy=ddp",), ("5", "25"))
    assert (request.repeats, request.most) == (4, None)


def test_an_empty_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "wrap", "--values", "1,,2"]) == 2
    assert "--values '1,,2' has an empty entry" in capsys.readouterr().err


def test_each_topic_has_the_options_that_it_understands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "micro_batch_size", "--values", "1"]) == 2
    assert "--values" in capsys.readouterr().err
    assert main(["tune", "bucket", "--max", "1"]) == 2
    assert "--max" in capsys.readouterr().err
