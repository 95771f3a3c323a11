"""What reaches the ranks: keys filled in, the user's own values left alone and reported, wrong presets refused."""

import dataclasses
import os
import pwd
from pathlib import Path

import pytest

from dtk.config.schema import NCCLConfig
from dtk.errors import DtkError
from dtk.nccl import render as module
from dtk.nccl.presets import read_presets
from dtk.nccl.render import OwnVariable, check_preset, placeholders, render

NOBODY = {"NCCL_CONF_FILE": "/absent"}
"""An environment whose user has neither variables nor a file of his own."""


PRESETS = read_presets()


def preset(name="auto", **keys):
    return dataclasses.replace(PRESETS[name].config, **keys)


def test_keys_are_filled_in_and_optional_ones_left_out():
    config = preset("infiniband", interface="eth0")
    assert render(config, NOBODY).variables == {
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_TIMEOUT": "22",
    }
    assert placeholders(config) == {"interface", "hca"}


def test_a_key_that_is_needed_is_asked_for_and_never_guessed():
    with pytest.raises(DtkError) as error:
        render(preset("tcp_ethernet"), NOBODY)
    assert "needs nccl.interface" in str(error.value)
    with pytest.raises(DtkError, match="this machine has ens3, lo"):
        check_preset(preset("tcp_ethernet"), "nccl", NOBODY, ["ens3", "lo"])
    with pytest.raises(DtkError, match=r"nccl\.hca"):
        render(preset("oci"), NOBODY)


def test_the_users_own_value_wins_is_reported_and_makes_the_key_unnecessary():
    own = {**NOBODY, "NCCL_SOCKET_IFNAME": "ens3", "GLOO_SOCKET_IFNAME": "ens3", "NCCL_NET": "Socket"}
    rendered = render(preset("tcp_ethernet"), own)
    assert rendered.variables == {"NCCL_DEBUG": "WARN"}
    assert rendered.kept == (
        OwnVariable("NCCL_SOCKET_IFNAME", "ens3", "={interface}", "environment"),
        OwnVariable("GLOO_SOCKET_IFNAME", "ens3", "{interface}", "environment"),
    ), "an equal value is not worth a word"


def test_an_empty_variable_of_the_users_is_his_own_too():
    assert render(preset(), {**NOBODY, "NCCL_DEBUG": ""}).kept == (
        OwnVariable("NCCL_DEBUG", "", "WARN", "environment"),
    )


def test_the_users_nccl_conf_wins_over_the_preset(tmp_path):
    file = tmp_path / "nccl.conf"
    file.write_text("NCCL_IB_TIMEOUT=18\nTORCH_FR_BUFFER_SIZE=1\n")
    rendered = render(preset("infiniband"), {"NCCL_CONF_FILE": str(file)})
    assert "NCCL_IB_TIMEOUT" not in rendered.variables, "a variable would hide the file's line from NCCL"
    assert rendered.kept == (OwnVariable("NCCL_IB_TIMEOUT", "18", "22", str(file)),)
    hang = render(preset("debug_hang"), {"NCCL_CONF_FILE": str(file)})
    assert hang.variables["TORCH_FR_BUFFER_SIZE"] == "2000", "NCCL's file means nothing to torch"


def test_the_run_folder_is_filled_in_at_the_launch(tmp_path):
    config = preset("debug_net")
    assert render(config, NOBODY).variables["NCCL_TOPO_DUMP_FILE"] == "{run}/nccl_topology.xml"
    assert render(config, NOBODY, tmp_path).variables["NCCL_DEBUG_FILE"] == f"{tmp_path}/nccl.%h.%p.log"


@pytest.mark.parametrize(
    ("name", "backend", "message"),
    [
        ("infiniband", "gloo", "is for NCCL, and these ranks communicate over gloo - use nccl=auto or nccl=cpu_gloo"),
        ("cpu_gloo", "nccl", "is for gloo, and these ranks communicate over NCCL - use nccl=auto"),
    ],
)
def test_a_preset_for_another_backend_is_refused(name, backend, message):
    with pytest.raises(DtkError, match=f"nccl={name} {message}$"):
        check_preset(preset(name), backend, NOBODY, None)


@pytest.mark.parametrize("name", ["auto", "debug_hang"])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_some_fit_both(name, backend):
    check_preset(preset(name), backend, NOBODY, ["lo"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interface": "=eth0"}, "the preset adds = and"),
        ({"interface": "eth0, eth1"}, "not a list of names"),
        ({"interface": "eth9"}, "this machine has no interface eth9: it has eth0, lo"),
        ({"variables": {"NCCL DEBUG": "INFO"}}, "not a variable of NCCL, gloo or their transports"),
        ({"variables": {"LD_PRELOAD": "/tmp/evil.so"}}, "not a variable of NCCL, gloo or their transports"),
        ({"variables": {"PYTHONPATH": "/tmp"}}, "not a variable of NCCL, gloo or their transports"),
        ({"variables": {"TORCH_FOO": "1"}}, "not a variable of NCCL, gloo or their transports"),
        ({"variables": {"NCCL_DEBUG": "a\nb"}}, "line break"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    config = dataclasses.replace(preset("cpu_gloo"), **changes)
    with pytest.raises(DtkError, match=message):
        check_preset(config, "gloo", NOBODY, ["eth0", "lo"])


def test_braces_that_are_no_key_stay():
    config = NCCLConfig(variables={"TORCH_X": "{a} {interfaces}"})
    assert render(config, NOBODY).variables == {"TORCH_X": "{a} {interfaces}"}


@pytest.mark.parametrize("text", ["hello", "10.1.0.0", "10.1.0.0/33", "10.1.0.0/255.255.0.0", "/16", ""])
def test_a_range_of_addresses_is_checked(text):
    with pytest.raises(DtkError, match="not an address range"):
        check_preset(preset("roce", traffic_class=104, address_range=text), "nccl", NOBODY, None)


@pytest.mark.parametrize("text", ["10.1.0.0/16", "10.1.2.3/16", "fd02::/16", None])
def test_networks_of_both_families_are_ranges(text):
    check_preset(preset("roce", traffic_class=104, address_range=text), "nccl", NOBODY, None)


def test_the_file_that_is_named_comes_before_the_one_in_the_home() -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert module.user_file({"NCCL_CONF_FILE": "/x/y.conf"}) == Path("/x/y.conf")
    assert module.user_file({}) == module.user_file({"NCCL_CONF_FILE": ""}) == home / ".nccl.conf"


def test_a_user_that_the_container_does_not_know_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert module.user_file({}) is None and module.read_conf(None) is None


def test_variables_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "nccl.conf"
    path.write_bytes(b"# why\nNCCL_DEBUG=INFO\n\nNCCL_IB_SL=3\xff\n")
    read = module.read_conf(path)
    assert read is not None and read.path == path
    assert read.content.variables["NCCL_DEBUG"] == "INFO" and read.content.lines["NCCL_IB_SL"] == 4


@pytest.mark.timeout(20)
def test_what_is_no_file_is_as_if_it_were_absent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (module.MOST_BYTES + 1))
    for name in ("pipe", "large", "none", "."):
        assert module.read_conf(tmp_path / name) is None
