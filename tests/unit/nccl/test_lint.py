"""The linter's answer for people and programs: places, severity, exit code, and facts of this machine."""

import pytest

from dtk.errors import DtkError
from dtk.nccl.given import Given
from dtk.nccl.lint import lint_given, parse_version
from dtk.nccl.machine import Machine, read_machine
from dtk.nccl.text import linted

BARE = Machine((), "none", "", None, (), (), "", "", False, False, None)


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A machine with two interfaces and one RDMA device, as the kernel lists them."""
    for name in ("net/lo", "net/eth0", "rdma/mlx5_0"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr("dtk.record.manifest.INTERFACES", tmp_path / "net")
    monkeypatch.setattr("dtk.record.manifest.RDMA", tmp_path / "rdma")
    return tmp_path


def look(variables, nodes=None, machine=BARE, version="", **more):
    places = dict.fromkeys(variables, "job.sh:3")
    return lint_given(
        Given(variables, places, **{"oddities": (), "read": ("job.sh",), **more}), machine, nodes, version
    )


def kinds(found):
    return {(item.variable, item.severity, item.cause) for item in found.items}


@pytest.mark.parametrize(
    ("name", "value", "severity", "cause"),
    [
        ("NCCL_IB_DISABEL", "1", "error", "env.unknown_variable"),
        ("NCCL_NOBODY_READS_THIS", "1", "warning", "env.unknown_variable"),
        ("NCCL_SHM_DISABLE", "true", "error", "env.silent_zero"),
        ("NCCL_P2P_LEVEL", "nvl", "error", "env.invalid_value"),
        ("NCCL_LL_THRESHOLD", "0", "warning", "env.deprecated_variable"),
        ("NCCL_SOCKET_IFNAME", "eth9", "error", "env.wrong_interface"),
        ("GLOO_SOCKET_IFNAME", "eth9", "error", "env.wrong_interface"),
        ("NCCL_IB_HCA", "mlx5_7", "error", "env.wrong_interface"),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_7", "warning", "env.wrong_interface"),
        ("NCCL_SOCKET_IFNAME", "eth0,ens3", "note", "env.wrong_interface"),
        ("NCCL_TOPO_FILE", "/absent.xml", "error", "env.invalid_value"),
        ("NCCL_DEBUG", "TRACE", "warning", "env.debug_left_on"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "warning", "env.debug_left_on"),
        ("NCCL_DEBUG", "INFO", "note", "env.debug_left_on"),
    ],
)
def test_every_kind_of_mistake(name, value, severity, cause, node):
    found = look({name: value})
    assert (name, severity, cause) in kinds(found)
    assert found.exit_code == (severity != "note")
    assert found.items[0].place == "job.sh:3"


def test_settings_that_fight_each_other(node):
    found = look({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"})
    assert kinds(found) == {("NCCL_P2P_LEVEL", "warning", "env.contradiction")}


@pytest.mark.parametrize(
    ("nodes", "severity", "cause"), [(None, "warning", "risky_setting"), (2, "error", "ib_disabled")]
)
def test_the_copied_setting_is_explained(nodes, severity, cause, node):
    (item,) = look({"NCCL_IB_DISABLE": "1"}, nodes).items
    assert (item.severity, item.cause) == (severity, f"env.{cause}")


def test_the_copied_setting_is_explained_where_it_does_nothing_too(node):
    (item,) = look({"NCCL_IB_DISABLE": "1"}, 1).items
    assert item.severity == "note" and "copied from guides" in item.message
    assert "NCCL_NET=Socket" in item.fix


def test_cards_are_named_where_there_are_none(node):
    (node / "rdma" / "mlx5_0").rmdir()
    assert kinds(look({"NCCL_IB_HCA": "mlx5_0"})) == {("NCCL_IB_HCA", "warning", "env.wrong_interface")}
    assert not look({"NCCL_IB_HCA": "mlx5_0"}, 1).items, "one node needs no card"


def test_elsewhere_leaves_this_machine_out_of_it(node):
    assert not look({"NCCL_SOCKET_IFNAME": "eth9", "NCCL_IB_HCA": "mlx5_7"}, machine=None).items


def test_the_version_counts(node):
    assert not look({"NCCL_PROXY_PROFILE": "x"}, version="2.20.5").items
    assert look({"NCCL_PROXY_PROFILE": "x"}, version="2.27.3").exit_code == 1
    with pytest.raises(DtkError, match="is no version"):
        parse_version("newest")


def test_oddities_and_shadowed_values(node):
    found = look(
        {"NCCL_IB_SL": "1"},
        oddities=(("/etc/nccl.conf:4", "no `=`"),),
        shadowed=(("NCCL_IB_SL", "/etc/nccl.conf:1", "2"),),
    )
    assert [(item.severity, item.place) for item in found.items] == [
        ("error", "/etc/nccl.conf:4"),
        ("note", "/etc/nccl.conf:1"),
    ]
    assert "job.sh:3 sets '1'" in found.items[1].message


def test_nothing_wrong_is_said_and_terminals_are_safe(node):
    assert linted(look({"NCCL_DEBUG": "WARN"})).startswith("nothing wrong in 1 variable of job.sh")
    text = linted(look({"NCCL_SOCKET_IFNAME": "\x1b[31meth9"}))
    assert "\x1b" not in text and "\\x1b" in text


def test_this_machine_can_be_looked_at():
    assert look({"NCCL_DEBUG": "WARN"}, machine=read_machine({})).exit_code == 0
