"""The linter's answer for people and programs: places, severity, exit code, and facts of this machine."""

import pytest

from dtk.errors import DtkError
from dtk.nccl.lint import lint_given, parse_version
from dtk.nccl.machine import Machine, read_machine
from dtk.nccl.text import linted
from dtk.nccl.variable_sources import Given

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


def kinds(result):
    return {(item.variable, item.severity, item.cause) for item in result.items}


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
    result = look({name: value})
    assert (name, severity, cause) in kinds(result)
    assert result.exit_code == (severity != "note")
    assert result.items[0].place == "job.sh:3"


def test_settings_that_fight_each_other(node):
    result = look({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"})
    assert kinds(result) == {("NCCL_P2P_LEVEL", "warning", "env.contradiction")}


@pytest.mark.parametrize(
    ("nodes", "severity", "cause"), [(None, "warning", "risky_setting"), (2, "error", "ib_disabled")]
)
def test_the_copied_setting_is_explained(nodes, severity, cause, node):
    (item,) = look({"NCCL_IB_DISABLE": "1"}, nodes).items
    assert (item.severity, item.cause) == (severity, f"env.{cause}")


def test_the_copied_setting_is_explained_where_it_does_nothing_too(node):
    (item,) = look({"NCCL_IB_DISABLE": "1"}, 1).items
    assert item.severity == "note" and "many guides set it" in item.message
    assert "NCCL_NET=Socket" in item.fix


def test_cards_are_named_where_there_are_none(node):
    (node / "rdma" / "mlx5_0").rmdir()
    assert kinds(look({"NCCL_IB_HCA": "mlx5_0"})) == {("NCCL_IB_HCA", "warning", "env.wrong_interface")}
    assert not look({"NCCL_IB_HCA": "mlx5_0"}, 1).items, "one node needs no card"


def test_elsewhere_leaves_this_machine_out_of_it(node):
    assert not look({"NCCL_SOCKET_IFNAME": "eth9", "NCCL_IB_HCA": "mlx5_7"}, machine=None).items


def test_the_version_counts(node):
    assert look({"NCCL_PROXY_PROFILE": "x"}, version="2.20.5").exit_code == 0
    assert look({"NCCL_PROXY_PROFILE": "x"}, version="2.27.3").exit_code == 1
    with pytest.raises(DtkError, match="is not a version"):
        parse_version("newest")


def test_oddities_and_shadowed_values(node):
    result = look(
        {"NCCL_IB_SL": "1"},
        oddities=(("/etc/nccl.conf:4", "file_no_value", "NCCL_NET"),),
        shadowed=(("NCCL_IB_SL", "/etc/nccl.conf:1", "2"),),
    )
    assert [(item.severity, item.place) for item in result.items] == [
        ("error", "/etc/nccl.conf:4"),
        ("note", "/etc/nccl.conf:1"),
    ]
    assert "job.sh:3 sets '1'" in result.items[1].message


def test_nothing_wrong_is_said_and_terminals_are_safe(node):
    assert linted(look({"NCCL_DEBUG": "WARN"})).startswith("no problem in 1 variable of job.sh")
    text = linted(look({"NCCL_SOCKET_IFNAME": "\x1b[31meth9"}))
    assert "\x1b" not in text and "\\x1b" in text


def test_this_machine_can_be_looked_at():
    assert look({"NCCL_DEBUG": "WARN"}, machine=read_machine({})).exit_code == 0


@pytest.mark.parametrize(
    ("name", "value", "severity", "message"),
    [
        ("NCCL_DEBUG", "WARN ", "error", "the value 'WARN ' contains a blank"),
        ("NCCL_DEBUG", "WARN\r", "error", "contains a carriage return (Windows line ends)"),
        ("NCCL_NET", "Socket\r", "error", "a carriage return"),
        ("NCCL_P2P_LEVEL", "NVL\r", "error", "a carriage return"),
        ("NCCL_SOCKET_IFNAME", "eth0\r", "error", "does not select what it appears to"),
        ("NCCL_DEBUG_SUBSYS", "INIT, NET", "warning", "' NET' is unknown and ignored"),
        ("NCCL_IB_SL", "3\r", "note", "still read correctly"),
        ("NCCL_ALGO", "allreduce:ring;foo:tree", "error", "foo before a colon is not a function"),
        ("NCCL_PROTO", "foo:LL;bar:LL", "error", "foo, bar before a colon are not a function"),
        ("NCCL_IB_TC", "256", "warning", "256 is not allowed"),
        ("NCCL_IB_TC", "-5", "warning", "-5 is not allowed"),
        ("NCCL_IB_SL", "16", "warning", "16 is not allowed"),
        ("NCCL_IB_GID_INDEX", "-2", "warning", "-2 is not allowed"),
        ("NCCL_RAS_ADDR", "localhost:70000", "warning", "port 70000 is not allowed"),
        ("NCCL_COMM_ID", "10.0.0.1:0", "warning", "port 0 is not allowed"),
        ("NCCL_DEBUG_FILE", "/nope/x.%h", "warning", "the folder of /nope/x.%h does not exist"),
    ],
)
def test_values_that_nccl_takes_otherwise_than_they_look(name, value, severity, message, node):
    rows = [(item.severity, item.cause) for item in look({name: value}).items if message in item.message]
    assert rows == [(severity, "env.invalid_value")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_TC", "255"),
        ("NCCL_IB_TC", "-1"),
        ("NCCL_IB_SL", "15"),
        ("NCCL_IB_GID_INDEX", "-1"),
        ("NCCL_IB_GID_INDEX", "300"),
        ("NCCL_RAS_ADDR", "localhost:65535"),
        ("NCCL_ALGO", "AllReduce:ring;Broadcast:tree"),
        ("NCCL_DEBUG_FILE", "/dev/null"),
        ("NCCL_DEBUG_FILE", "/nope/%h/x.log"),
        ("NCCL_DEBUG_FILE", "nccl.%p"),
        ("NCCL_DEBUG_TIMESTAMP_FORMAT", "[%F %T] "),
    ],
)
def test_values_at_the_edge_are_fine(name, value, node):
    assert not look({name: value}).items


def test_a_function_before_a_colon_needs_a_new_nccl(node):
    (item,) = look({"NCCL_ALGO": "allreduce:ring"}, version="2.23.4").items
    assert "is read from NCCL 2.24 on" in item.message
    assert not look({"NCCL_ALGO": "allreduce:ring"}, version="2.24.3").items


def test_several_names_have_and_one_has(node):
    both = look({"NCCL_IB_DISABLE": "1", "NCCL_IB_SL": "1", "NCCL_IB_TC": "1"}, 1)
    assert any("NCCL_IB_SL, NCCL_IB_TC have no effect" in item.message for item in both.items)
    entry = look({"NCCL_IB_DISABLE": "1", "NCCL_IB_TC": "1"}, 1)
    assert any("so NCCL_IB_TC has no effect" in item.message for item in entry.items)


@pytest.mark.parametrize(("version", "severity"), [("2.26.2", "warning"), ("2.29.7", "note"), ("2.27.3", None)])
def test_a_setting_that_meets_or_avoids_a_known_bug(version, severity):
    result = look({"NCCL_CUMEM_ENABLE": "0"}, version=version)
    assert [item.severity for item in result.items] == ([severity] if severity else [])
    assert all("NVIDIA/nccl#" in item.message and item.place == "job.sh:3" for item in result.items)


def test_a_default_with_a_known_bug_is_a_note_without_a_value():
    result = look({}, version="2.18.5")
    assert ("NCCL_NVLS_ENABLE", "note", "env.risky_setting") in kinds(result) and result.exit_code == 0
    assert "note    NCCL_NVLS_ENABLE: its default" in " ".join(linted(result).split(" "))
