"""Other forms of a preset are what their readers accept: shells, shellcheck, YAML, docker's env files."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dtk.commands.nccl import FORMS
from dtk.errors import DtkError
from dtk.nccl.presets import read_presets
from dtk.nccl.render import render
from dtk.nccl.text import export

PRESETS = {
    name: dataclasses.replace(
        preset,
        config=dataclasses.replace(preset.config, interface="eth0", hca="mlx5_0,mlx5_1", topo_file="/a b/t'$x.xml"),
    )
    for name, preset in read_presets().items()
}


def expected_variables(name, run):
    return render(PRESETS[name].config, {"NCCL_CONF_FILE": "/absent"}, run).variables


def shell_scripts(tmp_path):
    """Without a dollar in a value, of which shellcheck wonders whether it was meant."""
    paths = []
    for name, preset in PRESETS.items():
        preset = dataclasses.replace(preset, config=dataclasses.replace(preset.config, topo_file="/a b/t'x.xml"))
        for form in ("sh", "slurm"):
            path = tmp_path / f"{name}.{form}"
            path.write_text(export(preset, form, {}, tmp_path / "run folder"))
            paths.append(path)
    return paths


def test_bash_and_sh_take_all_of_them_and_shellcheck_has_no_complaint(tmp_path):
    paths = shell_scripts(tmp_path)
    for shell in ("bash", "sh"):
        for path in paths:
            subprocess.run([shell, "-n", path], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed; bash and sh took all of them")
    done = subprocess.run(["shellcheck", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["azure_nd", "gcp_a3_high", "debug_hang", "tcp_ethernet"])
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_shell_that_sources_it_has_the_variables_and_keeps_its_own(name, shell, tmp_path):
    run = tmp_path / "run folder"
    (tmp_path / "nccl.sh").write_text(export(PRESETS[name], "sh", {}, run))
    command = f". {tmp_path}/nccl.sh && env -0"
    clean = {"PATH": "/usr/bin:/bin", "NCCL_DEBUG": "TRACE"}
    done = subprocess.run([shell, "-euc", command], env=clean, capture_output=True, text=True, check=True)
    words = dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)
    expected = {**expected_variables(name, run), "NCCL_DEBUG": "TRACE"}
    assert {key: words.get(key) for key in expected} == expected
    if name == "debug_hang":
        assert (run / "flight").is_dir(), "the folder of files is made"


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_kubernetes_gets_texts_and_shared_memory(name, tmp_path):
    pod = yaml.safe_load(export(PRESETS[name], "k8s", {}, tmp_path))["spec"]
    (container,) = pod["containers"]
    values = {item["name"]: item["value"] for item in container["env"]}
    assert all("$" not in value.replace("$$", "") for value in values.values()), "Kubernetes expands nothing"
    assert {key: value.replace("$$", "$") for key, value in values.items()} == expected_variables(name, tmp_path)
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_an_env_file_has_comments_and_plain_lines(name, tmp_path):
    lines = export(PRESETS[name], "docker", {}, tmp_path).splitlines()
    plain = [line for line in lines if not line.startswith("#")]
    assert dict(line.split("=", 1) for line in plain) == expected_variables(name, tmp_path)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form_says_what_it_is_and_asks_for_what_it_needs(form):
    bare = read_presets()
    text = export(PRESETS["tcp_ethernet"], form, {"interface": "eth0"}, None)
    assert f"Made by: dtk nccl export tcp_ethernet interface=eth0 --format {form}" in text
    assert re.search(r"NCCL_SOCKET_NTHREADS=4", text), "the advice is in it"
    with pytest.raises(DtkError, match=r"needs nccl\.interface"):
        export(bare["tcp_ethernet"], form, {}, None)
    with pytest.raises(DtkError, match="run=FOLDER"):
        export(bare["debug_net"], form, {}, None)
    assert "{run}" not in export(bare["debug_net"], form, {}, Path("/logs"))
