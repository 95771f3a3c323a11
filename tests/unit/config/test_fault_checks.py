"""The section `fault`: strict keys, one-line errors, and no fault that cannot happen."""

import sys
from typing import Any

import pytest

from diagnostics.contract.files import table_beside
from dtk.config import fault_checks
from dtk.config.batch import settle
from dtk.config.checks import check
from dtk.config.compose import compose
from dtk.config.folders import conf_folder
from dtk.config.schema import NoFault
from dtk.errors import DtkError
from dtk.run import main

FAULTS = sorted(path.stem for path in (conf_folder() / "fault").glob("*.yaml"))
BUCKETS = table_beside(fault_checks.__file__)["gradients_in"]["buckets"]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_composes_and_may_run_as_it_is(fault: str) -> None:
    composed = compose([f"fault={fault}"])
    nproc: Any = composed.config.launcher.nproc
    nproc = 2 if nproc == "auto" else nproc
    config = settle(composed, nproc).config
    assert config.fault.name == fault
    check(config, nproc, "cpu")


def test_by_default_there_is_none() -> None:
    assert compose([]).config.fault == NoFault()


def test_the_user_has_the_last_word() -> None:
    config = compose(["fault=extra_collective", "fault.rank=1", "strategy=fsdp", "train.steps=50"]).config
    assert (config.fault.rank, config.strategy.name, config.train.steps) == (1, "fsdp", 50)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["fault=extra_colective"], 'unknown fault "extra_colective" - did you mean fault=extra_collective?'),
        (["fault=exception", "fault.rnk=0"], 'unknown key "fault.rnk" - did you mean fault.rank?'),
        (["fault=tiny_buckets", "fault.rank=0"], "fault.rank belongs to"),
        (["fault.name=exception"], "fault.name is fixed by the choice of fault"),
        (["fault=exception", "fault.rank=-1"], "fault.rank=-1 is out of range"),
        (["fault=exception", "fault.rank=2"], "fault.rank=2 does not exist: the ranks are 0 to 1"),
        (["fault=exception", "fault.step=11"], "fault.step=11 is never reached: train.steps=10"),
        (["fault=exception", "launcher.nproc=1"], "fault=exception needs two ranks"),
        (["fault=rank0_state_dict", "strategy=ddp"], "fault=rank0_state_dict cannot happen under strategy=ddp"),
        (["fault=branch", "model=llama_tiny"], "fault=branch needs a GPT"),
        (["fault=accumulation_boundary", "train.global_batch_size=4"], "needs several micro-batches per step"),
        (
            ["fault=unused_parameters", "strategy=ddp", "parallel.cp=2", "launcher.nproc=2"],
            "needs whole models and whole sequences: parallel.cp=2 - use parallel.cp=1",
        ),
        (["fault=per_parameter_all_reduce", "parallel.pp=2"], "whole sequences: parallel.pp=2 - use parallel.pp=1"),
        (["fault=full_gather", "strategy=ddp"], "cannot happen under strategy=ddp - use strategy=fsdp"),
        (["fault=full_gather", "strategy=ddp", "parallel.cp=2"], "strategy=ddp parallel.cp=2 - use strategy=fsdp"),
        (
            ["fault=per_parameter_all_reduce", "strategy=fsdp", "parallel.cp=2"],
            "under strategy=fsdp parallel.cp=2 - use strategy=ddp",
        ),
    ],
)
def test_one_line_and_exit_2(overrides: list[str], expected: str, capsys: Any) -> None:
    assert main([*overrides, "launcher.device=cpu"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and expected in lines[0]


def test_help_lists_them(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["--help", "all"])
    text = capsys.readouterr().out
    assert all(f"    {fault} " in text for fault in FAULTS)


def test_without_a_fault_nothing_of_it_is_imported() -> None:
    import subprocess

    code = "import sys, dtk.rank.worker; print([m for m in sys.modules if m.startswith('dtk.faults')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_configuration_from_before_there_were_faults_is_read(plain_without_fault: dict[str, Any]) -> None:
    from dtk.config.strict import from_plain

    assert from_plain(plain_without_fault).fault == NoFault()


@pytest.fixture
def plain_without_fault() -> dict[str, Any]:
    plain = compose([]).plain
    del plain["fault"]
    return plain


def test_errors_are_dtk_errors() -> None:
    with pytest.raises(DtkError):
        compose(["fault=exception", "fault.rank=one"])


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
@pytest.mark.parametrize("fault", BUCKETS)
def test_replicas_of_a_divided_model_have_no_buckets(fault: str, strategy: str, capsys: Any) -> None:
    """Under tp, ddp and zero1 run on fully_shard."""
    words = [f"fault={fault}", f"strategy={strategy}", "parallel.tp=2", "launcher.nproc=4", "strategy.bucket_cap_mb=25"]
    assert main([*words, "launcher.device=cpu"]) == 2
    expected = f"fault={fault} cannot happen under strategy={strategy} parallel.tp=2 - use strategy=ddp parallel.tp=1"
    assert capsys.readouterr().err.splitlines() == [f"dtk: {expected}"]


@pytest.mark.parametrize(("fault", "strategy"), [("full_gather", "ddp"), ("rank0_state_dict", "zero1")])
def test_replicas_of_a_divided_model_have_units(fault: str, strategy: str) -> None:
    composed = compose([f"fault={fault}", f"strategy={strategy}", "parallel.tp=2", "launcher.nproc=4"])
    check(settle(composed, 4).config, 4, "cpu")
