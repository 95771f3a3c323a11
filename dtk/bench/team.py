"""Chooses measurements and presets (`choose`), and starts the ranks of a launch: all from this process, or one from
each rank of torchrun or Slurm. Each launch uses fresh processes.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from dtk.bench.model import AS_IS, Side, Spec
from dtk.config.compose import compose
from dtk.config.placement import Placement, place
from dtk.errors import Errors
from dtk.launch.children import Children, Failed, inherited, local_ranks
from dtk.launch.processes import free_port
from dtk.nccl.render import check_preset, render
from dtk.record.manifest import network

_errors, _SECTIONS = Errors(__file__), ("launcher", "nccl")
RANK = ("-m", "dtk.bench.rank")
POLL_S = 0.2  # Chosen: exits are noticed quickly, and the CPU is left to the ranks.
GRACE_S = 2.0  # Chosen: those torn down by the first failure report soon after it; longer only delays the result.
BYE_S = 5.0  # Chosen: the store's last messages take milliseconds.


class Team:
    """All ranks of the benchmark, seen from the reporting process: here all of them on this machine."""

    def __init__(self, world_size: int, threads: int) -> None:
        self.world_size = world_size
        self.threads = threads
        """OMP_NUM_THREADS of a rank that does not inherit it."""

    def start(self, spec: Spec, variables: Mapping[str, str]) -> Children:
        """Start one launch on all ranks and return this process's own ones, to be used as a context."""
        return Children([*RANK, spec.dumps()], local_ranks(self.world_size, self.threads, variables))

    def elsewhere(self) -> list[Failed]:
        """Return ranks of the current launch that failed under other processes."""
        return []

    def over(self) -> None:
        """End the current launch, including ranks that still run under other processes."""

    def close(self, code: int) -> None:
        """Announce that no launch follows; the other processes exit with this code."""


class Leader(Team):
    """Rank 0 of torchrun or Slurm: tells the other ranks through the store what to start."""

    def __init__(self, store: PrefixStore) -> None:
        super().__init__(int(os.environ["WORLD_SIZE"]), 1)
        self.store = store
        self._launch = 0

    def start(self, spec: Spec, variables: Mapping[str, str]) -> Children:
        """Start rank 0 as a child of this process, the others as children of theirs."""
        self._launch += 1
        order = {"spec": spec.dumps(), "variables": dict(variables), "port": str(free_port())}
        self.store.set(f"launch/{self._launch}", json.dumps(order))
        return _own(order)

    def elsewhere(self) -> list[Failed]:
        """Return the failures that the other processes have reported for their ranks."""
        failures = self.store.add(f"failures/{self._launch}", 0)
        return [Failed(**json.loads(self.store.get(f"failure/{self._launch}/{n}"))) for n in range(1, failures + 1)]

    def over(self) -> None:
        """Make the other processes kill ranks of this launch that still run."""
        self.store.set(f"over/{self._launch}", "1")

    def close(self, code: int) -> None:
        """Wait briefly until all have received the code, as the store may end with this process."""
        self.store.set(f"launch/{self._launch + 1}", json.dumps({"end": code}))
        ends_s = time.monotonic() + BYE_S
        while self.store.add("heard", 0) < self.world_size - 1 and time.monotonic() < ends_s:
            time.sleep(POLL_S / 4)


def follow_leader(store: PrefixStore) -> int:
    """Start what rank 0 announces, on any other rank, until it announces the end; return the exit code."""
    for launch in count(1):
        order = json.loads(store.get(f"launch/{launch}"))
        if "end" in order:
            break
        with _own(order) as children:
            while not (over := store.check([f"over/{launch}"])) and not children.ended:
                for _ in children.lines(POLL_S):
                    pass
            for failed in () if over else children.failed():
                # The text must be there before the count says so.
                number = store.add(f"claimed/{launch}", 1)
                store.set(f"failure/{launch}/{number}", json.dumps(asdict(failed)))
                store.add(f"failures/{launch}", 1)
    store.add("heard", 1)
    return int(order["end"])


def _own(order: Mapping[str, Any]) -> Children:
    """Return this process's rank as a child, in a process group separate from torchrun's."""
    environment = inherited(order["variables"], MASTER_PORT=order["port"])
    return Children([*RANK, order["spec"]], {int(os.environ["RANK"]): environment})


def choose(
    overrides: Sequence[str], presets: Sequence[str], config_dir: Path | None, cuda_devices: int, local_size: int | None
) -> tuple[Placement, tuple[Side, ...]]:
    """Compose and check the measurements; return the placement of the ranks and the presets to measure.

    `local_size` are the ranks on this machine, where torchrun or Slurm started them. DtkError if an override that means
    nothing here, no such preset, or one for another backend.
    """
    for text in overrides:
        key = text.partition("=")[0]
        useless = key.lstrip("+~").partition(".")[0] not in _SECTIONS
        _errors.refuse({"useless": useless, "twice": presets and key == "nccl"}, text=text)
    configs = [compose([*overrides, f"nccl={name}"], config_dir).config for name in presets]
    configs = configs or [compose(list(overrides), config_dir).config]
    launcher = configs[0].launcher
    _errors.refuse({"submits": launcher.name != "local"}, launcher=launcher.name)
    placement = place(launcher, configs[0].strategy, cuda_devices, local_size)
    sides = []
    for config in configs:
        check_preset(config.nccl, placement.backend, os.environ, network()["interfaces"])
        rendered = render(config.nccl, os.environ)
        from_presets = {variable.name: variable.preset for variable in rendered.kept}
        own = {variable.name: variable.value for variable in rendered.kept}
        sides.append(Side(config.nccl.name, {**rendered.variables, **from_presets}, own))
    if not presets and not sides[0].variables:
        sides = [replace(sides[0], name=AS_IS)]
    if len(sides) == 2 and sides[0].name == sides[1].name:
        sides[1] = replace(sides[1], name=f"{sides[1].name} again")
    return placement, tuple(sides)
