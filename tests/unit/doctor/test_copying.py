"""Copies between devices are really made and checked."""

import json

import pytest

from dtk.doctor import copying, gpus
from dtk.doctor.model import ChildOutput, run_child


def test_copies_between_devices_are_really_made(capsys):
    copying.main(["cpu", "cpu:0"])
    said = ChildOutput([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    result = gpus.judge_copies(said)
    assert result.status in ("ok", "warning"), result  # On a busy machine one may be slower, and that is said.
    assert [copy["gb_per_s"] > 0 for copy in result.measures["copies"]] == [True, True]


@pytest.mark.extended
def test_a_copy_to_a_device_that_is_not_there_fails():
    result = gpus.judge_copies(run_child(["-m", "dtk.doctor.copying", "cpu", "cuda:99"], 60))
    assert result.status == "failure"
    assert "in the copy from cpu to cuda:99" in result.summary
