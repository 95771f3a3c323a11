"""The shipped presets: complete, explained, known to the linter, and what Hydra makes of them is what is shown."""

import re
from dataclasses import replace

import pytest

from diagnostics.analysis.environment.catalogue import catalogue
from diagnostics.analysis.environment.lint import lint
from diagnostics.causes.lint_texts import lint_text
from dtk.config.compose import compose
from dtk.config.folders import conf_folder
from dtk.errors import DtkError
from dtk.nccl.presets import find_preset, read_presets
from dtk.nccl.render import render

PRESETS = read_presets()
NAMED = [
    "auto",
    "nvlink_single_node",
    "pcie_no_p2p",
    "tcp_ethernet",
    "infiniband",
    "ib_sharp",
    "roce",
    "aws_efa",
    "gcp_a3_high",
    "gcp_a3_mega",
    "azure_nd",
    "oci",
    "coreweave",
    "gb200_nvl72",
    "container",
    "slurm",
    "debug_light",
    "debug_net",
    "debug_hang",
    "debug_nan",
    "low_memory",
    "isolate_nvlink",
    "isolate_network",
    "cpu_gloo",
]
KEYS = {"interface": "eth0,eth1", "hca": "mlx5_0,mlx5_1", "topo_file": "/t.xml", "ras_port": 28111}
KEYS |= {"address_range": "10.1.0.0/16", "traffic_class": 104}


def test_every_preset_that_was_promised_is_there():
    assert sorted(PRESETS) == sorted(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_every_variable_says_why_whence_for_what_when_it_harms_and_when_to_remove_it(name):
    preset = PRESETS[name]
    assert preset.about["source"] and preset.about["harms"] and preset.about["remove"]
    assert preset.settings
    for setting in preset.settings:
        for key in ("why", "source", "versions", "harms", "remove"):
            assert len(getattr(setting, key)) > 6, f"{setting.name} says nothing of {key}"


@pytest.mark.parametrize("name", NAMED)
def test_the_linter_has_no_complaint(name):
    variables = render(replace(PRESETS[name].config, **KEYS), {"NCCL_CONF_FILE": "/absent"}).variables
    assert not any(re.search(r"\{(?!run\})", text) for text in variables.values())
    for item in lint(variables, catalogue().newest, 2, {}):
        fought = name == "isolate_network" and lint_text(item).cause == "env.p2p_disabled"
        requests = name in ("debug_net", "debug_nan") and lint_text(item).cause == "env.debug_left_on"
        old = item.variable == "NCCL_MIN_NCHANNELS"  # As in Google's profile: its checker wants this name.
        assert fought or requests or old, item


@pytest.mark.parametrize("name", ["gcp_a3_high", "oci"])
def test_hydra_composes_what_is_shown(name):
    config = compose([f"nccl={name}", 'nccl.hca="mlx5_0,mlx5_1"']).config.nccl
    assert config.variables == {setting.name: setting.value for setting in PRESETS[name].settings}
    assert replace(config, hca=None) == PRESETS[name].config


@pytest.mark.parametrize("name", NAMED)
def test_nothing_dangerous_is_in_any(name):
    variables = PRESETS[name].config.variables
    never = {"NCCL_IB_DISABLE", "NCCL_CHECK_MODE", "NCCL_NTHREADS", "TORCH_NCCL_BLOCKING_WAIT"}
    assert not never & set(variables)
    assert not {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"} & set(variables)
    assert variables.get("NCCL_PROTO") != "LL128"
    if not name.startswith("gcp_"):
        assert not {"NCCL_ALGO", "NCCL_PROTO"} & set(variables), "only where a vendor's plugin demands it"


def test_a_variable_of_the_command_line_joins_those_of_the_preset():
    config = compose(["nccl=infiniband", "nccl.variables={NCCL_DEBUG: INFO, NCCL_IB_SL: '1'}"]).config.nccl
    assert config.variables["NCCL_DEBUG"] == "INFO"
    assert (config.variables["NCCL_IB_SL"], config.variables["NCCL_IB_TIMEOUT"]) == ("1", "22")


def test_auto_is_the_default_and_leaves_nccl_alone():
    config = compose([]).config.nccl
    assert (config.name, config.backend, config.variables) == ("auto", "any", {"NCCL_DEBUG": "WARN"})


def test_versions_come_from_the_catalogue_unless_said_otherwise():
    by_name = {setting.name: setting.versions for setting in PRESETS["infiniband"].settings}
    assert by_name["NCCL_IB_HCA"] == "NCCL 2.3.5 and newer"
    assert "18 before 2.23" in by_name["NCCL_IB_TIMEOUT"]
    assert PRESETS["debug_nan"].settings[1].versions == "torch 2.5 and newer"


def test_a_preset_of_the_users_own(tmp_path):
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl" / "mine.yaml").write_text("# My cluster.\nname: mine\nvariables: {NCCL_IB_SL: '3'}\n")
    preset = find_preset("mine", tmp_path)
    assert preset.summary == "My cluster."
    assert [(setting.name, setting.value, setting.why) for setting in preset.settings] == [("NCCL_IB_SL", "3", "")]
    assert compose(["nccl=mine"], tmp_path).config.nccl.variables == {"NCCL_IB_SL": "3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine\nvariables: {NCCL_IB_SL: 3}\n", "NCCL_IB_SL=3 is a number"),
        ("name: mine\nvaribles: {}\n", 'unknown key "nccl.varibles"'),
        ("name: [\n", "cannot read"),
        ("name: mine\nabout: {NCCL_X: {why: y}}\n", "about.NCCL_X is about a variable that the preset does not set"),
        ("name: mine\nabout: {preset: {sauce: y}}\n", "unknown key about.preset.sauce"),
        ("- a\n", "not a section"),
    ],
)
def test_a_damaged_preset_is_one_line(text, message, tmp_path):
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl" / "mine.yaml").write_text(text)
    with pytest.raises(DtkError, match=re.escape(message)) as error:
        find_preset("mine", tmp_path)
    assert "\n" not in str(error.value)


def test_an_unknown_preset_is_told_with_what_was_meant():
    with pytest.raises(DtkError, match="did you mean infiniband"):
        find_preset("infiniban")
    assert not (conf_folder() / "nccl" / "default.yaml").exists()
