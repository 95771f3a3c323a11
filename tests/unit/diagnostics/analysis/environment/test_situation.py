"""What the rules share: the variables of a process, and what is usable of a description of the machine."""

from typing import Any

import pytest

from diagnostics.analysis.environment.situation import Change, assign, lint_of, situation


def test_an_empty_variable_is_unset_and_numbers_are_read_as_nccl_reads_them() -> None:
    where = situation({"NCCL_IB_DISABLE": "", "NCCL_BUFFSIZE": "0x10", "NCCL_NET": "IB"}, None, None, {})
    assert where.number("NCCL_IB_DISABLE") is None is where.number("NCCL_P2P_DISABLE")
    assert where.number("NCCL_BUFFSIZE") == 16 and where.number("NCCL_NET") == 0
    assert where.get("NCCL_NET") == "IB" and where.get("NCCL_ALGO") == ""


def test_what_is_not_described_is_unknown_and_not_absent() -> None:
    where = situation({}, None, None, {})
    assert (where.nproc, where.interfaces, where.infiniband, where.nvlink) == (None, None, None, None)
    assert where.missing_files == where.missing_folders == frozenset()


def test_a_description_of_the_machine() -> None:
    hardware = {"nproc": 8, "interfaces": ["lo", "eth0"], "infiniband": [], "missing_files": ["NCCL_TOPO_FILE"]}
    where = situation({}, (2, 27, 3), 4, hardware)
    assert (where.nproc, where.interfaces, where.infiniband) == (8, ("lo", "eth0"), ())
    assert (where.nnodes, where.nccl_version, where.missing_files) == (4, (2, 27, 3), {"NCCL_TOPO_FILE"})


@pytest.mark.parametrize(
    ("hardware", "nvlink"),
    [
        ({"gpus": [{"name": "NVIDIA H200"}] * 2}, True),
        ({"gpus": [{"name": "NVIDIA H200"}]}, None),
        ({"gpus": [{"name": "NVIDIA L40S"}] * 8}, None),
        ({"nvlink": False, "gpus": [{"name": "NVIDIA H200"}] * 2}, False),
        ({"nvlink": "yes"}, None),
        ({"gpus": "eight"}, None),
    ],
)
def test_nvlink_is_told_or_follows_from_boards_that_have_it(hardware: dict[str, Any], nvlink: bool | None) -> None:
    assert situation({}, None, None, hardware).nvlink is nvlink


def test_a_fix_is_a_change() -> None:
    assert assign("NCCL_ALGO", "Ring") == Change(unset="", name="NCCL_ALGO", value="Ring")


def test_lints_are_equal_whatever_the_order_of_what_their_rule_saw() -> None:
    lint, other = lint_of("note", "A", "rule", text="x", count=2), lint_of("note", "A", "rule", count=2, text="x")
    assert lint == other and len({lint, other}) == 1
