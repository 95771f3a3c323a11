"""The shipped YAML files: small, explained, complete; found in the source tree and in an installed package."""

import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import dtk.config.folders as folders
from diagnostics.contract.files import read_table
from dtk.config.compose import compose
from dtk.config.help import ALL, description, help_text
from dtk.config.resume import change
from dtk.config.schema import KINDS, Config, NCCLConfig, ParallelConfig
from dtk.errors import DtkError
from dtk.nccl.render import KEYS, placeholders
from dtk.sharding.registry import CONFIG_TYPES

CONF = folders.conf_folder()
FILES = sorted(CONF.rglob("*.yaml"))
ROOT = Path(folders.__file__).parents[2]
PRESETS = [p for p in FILES if p.parent.name == "strategy" and p.read_text().startswith("# @package _global_")]
"""Options that choose keys of several sections."""
FIELDS = {field.name: field.type for field in dataclasses.fields(Config)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONF)))
def test_each_opens_with_what_it_is_and_the_command_that_uses_it(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="ascii").splitlines() if not line.startswith("# @")]
    assert len(description(path)) > 10
    users = {folders.HARDWARE: "dtk plan", folders.SWEEPS: "dtk sweep"}
    command = users.get(path.parent.name, "python -m dtk.run")
    assert lines[1].startswith(f"# Use: {command}")
    if path.parent != CONF:
        assert path.stem in lines[1] or path.parent.name in lines[1]
    assert len(lines) <= 60


@pytest.mark.parametrize(
    "path",
    [
        p
        for p in FILES
        if p not in PRESETS and p.parent.name not in ("conf", "experiment", "fault", folders.HARDWARE, folders.SWEEPS)
    ],
    ids=lambda p: f"{p.parent.name}/{p.stem}",
)
def test_each_holds_every_key_of_its_schema(path: Path) -> None:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    section = path.parent.name
    kind: Any = KINDS[section][1][values[KINDS[section][0]]] if section in KINDS else FIELDS[section]
    keys = {field.name for field in dataclasses.fields(kind)}
    if section == "nccl":  # Keys that only some presets refer to stand in those.
        keys -= set(KEYS) - placeholders(NCCLConfig(variables=values["variables"]))
    assert set(values) == keys
    if section not in ("checkpoint", "record", "parallel"):
        assert values["name"] == path.stem


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "fault"], ids=lambda p: p.stem)
def test_each_fault_holds_every_key_of_its_kind(path: Path) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))["fault"]
    assert values["name"] == path.stem
    assert set(values) == {field.name for field in dataclasses.fields(KINDS["fault"][1][path.stem])}


def test_the_main_file_holds_the_rest() -> None:
    values = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    groups = {next(iter(entry)) for entry in values.pop("defaults") if isinstance(entry, dict)} - {"experiment"}
    assert set(values) | groups == set(FIELDS)
    assert set(values["train"]) == {field.name for field in dataclasses.fields(Any and FIELDS["train"])}  # type: ignore[arg-type]


def test_the_groups_are_those_that_were_promised() -> None:
    paths = folders.groups([CONF])
    assert set(paths) == {
        *("model", "data", "task", "strategy", "parallel", "precision", "optimizer", "schedule"),
        *("checkpoint", "record", "tracker", "launcher", "nccl", "experiment", "fault"),
    }
    assert set(paths["strategy"]) - {path.stem for path in PRESETS} == set(KINDS["strategy"][1])


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_each_preset_is_the_option_that_it_names_with_degrees(path: Path) -> None:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = compose([f"strategy={path.stem}", "parallel.cp=3"]).config
    assert {"strategy"} <= set(values) <= {"strategy", "parallel"}
    defaults = dataclasses.asdict(KINDS["strategy"][1][values["strategy"]["name"]]())  # type: ignore[call-overload]
    assert dataclasses.asdict(config.strategy) == values["strategy"]
    # One that sets no degrees sets keys of the strategy.
    assert (values["strategy"] == defaults) == ("parallel" in values) and values["strategy"].keys() == defaults.keys()
    assert dataclasses.asdict(config.parallel) == {
        **dataclasses.asdict(ParallelConfig()),
        **values.get("parallel", {}),
        "cp": 3,
    }


def test_help_lists_every_option_with_its_description() -> None:
    text = help_text(ALL)
    for options in folders.groups([CONF]).values():
        for option, path in options.items():
            assert any(line.split()[:1] == [option] and description(path) in line for line in text.splitlines())


def test_help_needs_neither_hydra_nor_torch() -> None:
    code = (
        "import sys, dtk.config.help as h; h.help_text(); "
        "print([m for m in ('hydra', 'torch', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_installed_layout(tmp_path: Path) -> None:
    """As a wheel lays it out: site-packages/dtk and in it conf, no pyproject.toml."""
    package = tmp_path / "site-packages" / "dtk"
    for name in ("config", "console", "sharding", "strategies", "parallel"):
        shutil.copytree(ROOT / "dtk" / name, package / name)
    for name in ("__init__.py", "errors.py"):
        (package / name).write_text((ROOT / "dtk" / name).read_text())
    (package / "conf").symlink_to(CONF)
    (package.parent / "diagnostics").symlink_to(ROOT / "diagnostics")
    code = "import dtk.config.compose as c; print(c.source_tree(), c.compose(['strategy=ddp']).config.strategy.name)"
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.stdout.strip() == "None ddp", done.stderr


def test_an_installation_without_conf_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "dtk" / "config" / "folders.py"
    copy.parent.mkdir(parents=True)
    copy.write_text(Path(folders.__file__).read_text())
    spec = importlib.util.spec_from_file_location("folders_copy", copy)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(DtkError, match="dtk's own configuration is missing"):
        module.conf_folder()


def test_a_preset_changes_its_sections_in_a_stored_run_too() -> None:
    again = change(compose([], traced=True), ["strategy=tp"], None)
    assert (again.config.strategy.name, again.config.parallel.tp) == ("ddp", 2)
    later = change(again, ["strategy=fsdp"], None)
    assert (later.config.strategy.name, later.config.parallel.tp) == ("fsdp", 2), "strategy=fsdp sets no degree"
    assert folders.preset_sections(CONF / "fault" / "no_reshard.yaml") == []


def test_the_sweep_over_strategies_names_all_that_are_compared_on_one_node() -> None:
    traits = {name: kind.traits for name, kind in CONFIG_TYPES.items()}
    compared = [name for name, of in traits.items() if of.compared and not of.one_process]
    swept = read_table(folders.conf_folder() / folders.SWEEPS / "strategies.yaml")["parameters"]["strategy"]["values"]
    assert swept == [name for name in compared if traits[name].replicated_over != "dp_replicate"]
