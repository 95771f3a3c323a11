"""From overrides and names of presets to what is measured: where the ranks run, and the variables of each side."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dtk.bench.model import AS_IS, Side
from dtk.config.compose import compose
from dtk.config.placement import Placement, place
from dtk.errors import DtkError
from dtk.nccl.render import check_preset, render
from dtk.record.manifest import network

_SECTIONS = ("launcher", "nccl")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is measured, and where."""

    placement: Placement
    sides: tuple[Side, ...]


def choose(
    overrides: Sequence[str], presets: Sequence[str], config_dir: Path | None, cuda_devices: int, local_size: int | None
) -> Chosen:
    """Compose and check.

    Args:
        overrides: of the sections `launcher` and `nccl`.
        presets: two of the group `nccl` to compare, or none: the one that the overrides choose.
        config_dir: the user's own YAML files.
        cuda_devices: on this machine.
        local_size: ranks on this machine, where torchrun or Slurm started them.

    Raises:
        DtkError: an override that means nothing here, no such preset, or one for another backend.
    """
    for text in overrides:
        section = text.partition("=")[0].lstrip("+~").partition(".")[0]
        if section not in _SECTIONS:
            raise DtkError(f"{text} changes no collective", "no model runs here", "give launcher.* and nccl.* only")
        if presets and text.partition("=")[0] == "nccl":
            raise DtkError(f"{text} and --ab both choose presets", fix="drop one of them")
    configs = [compose([*overrides, f"nccl={name}"], config_dir).config for name in presets]
    configs = configs or [compose(list(overrides), config_dir).config]
    launcher = configs[0].launcher
    if launcher.name != "local":
        why = "collectives are measured where the command is typed"
        fix = "start it on the nodes by torchrun or srun"
        raise DtkError(f"launcher={launcher.name} submits training", why, fix)
    placement = place(launcher, configs[0].strategy, cuda_devices, local_size)
    sides = []
    for config in configs:
        check_preset(config.nccl, placement.backend, os.environ, network()["interfaces"])
        rendered = render(config.nccl, os.environ)
        wanted = {variable.name: variable.preset for variable in rendered.kept}
        own = {variable.name: variable.value for variable in rendered.kept}
        sides.append(Side(config.nccl.name, {**rendered.variables, **wanted}, own))
    if not presets and not sides[0].variables:
        sides = [replace(sides[0], name=AS_IS)]
    if len(sides) == 2 and sides[0].name == sides[1].name:
        sides[1] = replace(sides[1], name=f"{sides[1].name} again")
    return Chosen(placement, tuple(sides))
