"""Exports a preset as shell, Slurm, Kubernetes or Docker file. Variables that are already set take precedence."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from dtk.console.options import wrapped
from dtk.console.script_text import as_yaml, kubernetes_argument
from dtk.errors import DtkError
from dtk.nccl.presets import Preset
from dtk.nccl.render import RUN, fill

COLUMNS = 100  # Line width of comments in exported files.
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/-]+")


def export(preset: Preset, form: str, config_values: Mapping[str, str], run: Path | None) -> str:
    """Render the preset in one form, with `run` in place of `{run}`; DtkError if a key that it needs is null."""
    variables: dict[str, str] = {}
    for setting in preset.settings:
        if f"{{{RUN}}}" in setting.value and run is None:
            why, fix = "outside of dtk run there is no run folder", "run=FOLDER, one that all ranks can write to"
            raise DtkError(f"{preset.name} writes files ({setting.name})", why, fix)
        value = fill(preset.config, setting.name, setting.value, run)
        if value is not None and not value.isprintable():
            raise DtkError(f"{setting.name} of {preset.name} has a line break or a control character")
        if value is not None:
            variables[setting.name] = value
    typed = " ".join(["dtk nccl export", preset.name, *(f"{k}={v}" for k, v in config_values.items())])
    heading = [f"nccl={preset.name}: {preset.summary}", f"Made by: {typed} --format {form}"]
    heading += wrapped(preset.about.get("advice", ""), COLUMNS)
    if form == "k8s":
        return _kubernetes(heading, variables)
    if form == "docker":
        use = "Use: docker run --env-file nccl.env --shm-size=1g --ulimit memlock=-1 IMAGE ..."
        lines = _comments([*heading, use, "A later -e NAME=VALUE on the command line takes precedence."])
        return "\n".join([*lines, *(f"{name}={value}" for name, value in variables.items())]) + "\n"
    start = ["#!/bin/sh", *_comments(["Source it before the job starts: . ./nccl.sh", *heading])]
    if form == "slurm":
        how = "For an sbatch script, before srun; srun hands the variables on."
        start = ["#!/bin/bash", *_comments([how, *heading]), "#SBATCH --export=ALL"]
    reasons = {setting.name: setting.why for setting in preset.settings}
    lines = [*start, ""]  # Then an export of each variable, which keeps a value set by the user.
    folders = sorted({str(Path(value).parent) for value in variables.values() if run is not None and str(run) in value})
    lines += [f"mkdir -p -- {' '.join(shlex.quote(folder) for folder in folders)}"] if folders else []
    for name, value in variables.items():
        lines += _comments(wrapped(f"{name}: {reasons[name]}", COLUMNS))
        # Quote even what only some shells expand (zsh expands `=eth0` to the path of a command).
        quoted = shlex.quote(value) if _PLAIN.fullmatch(value) or shlex.quote(value) != value else f"'{value}'"
        lines.append(f'[ -n "${{{name}+set}}" ] || export {name}={quoted}')
    return "\n".join(lines) + "\n"


def _kubernetes(heading: list[str], variables: dict[str, str]) -> str:
    """Render part of a pod template, to be merged by container name with kustomize or kubectl patch."""
    container = {
        "name": "pytorch",
        "env": [{"name": name, "value": kubernetes_argument(value)} for name, value in variables.items()],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    spec = {"spec": {"containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}}
    notes = ["Merge it into the pod template (strategic merge); `pytorch` is the container of the training job."]
    return "\n".join(_comments([*heading, *notes])) + "\n" + as_yaml(spec)


def _comments(lines: list[str]) -> list[str]:
    return [f"# {line}" for line in lines]
