"""Launches ranks, for one preset or two in turns, and builds the report from their figures. Times nothing itself."""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count, product
from pathlib import Path
from statistics import median
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from diagnostics.contract.formatting import counted
from dtk.bench.model import AS_IS, BenchReport, Gain, Result, Side, Spec, key_of
from dtk.compare.statistics import estimate
from dtk.config.compose import compose
from dtk.config.placement import Placement, place
from dtk.errors import Errors
from dtk.launch.children import Children, Failed, culprit, inherited, local_ranks
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


AB_PASSES = 3  # Chosen: the median of three passes of a launch ignores one disturbance, and is one repeat.
_START_S = 150.0  # Chosen: longer than a rank's own timeout to join, which names what is missing.
_LATER_S = 10.0  # Chosen: what is waited beyond a collective's own timeout, which names the operation.
STOPPED = "stopped by Ctrl-C"
Progress = Callable[[str], None]


@dataclass(slots=True)
class Launch:
    """Messages of the ranks of one launch."""

    side: str
    about: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    passes: list[dict[str, float]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    at: str = ""
    """What rank 0 is measuring."""
    failure: str = ""

    def take(self, line: Mapping[str, Any]) -> None:
        """Process one message of a rank."""
        if "cell" in line:
            cell = line["cell"]
            self.cells[key_of(cell["operation"], cell["size_bytes"])] = cell
        elif "pass" in line:
            self.passes.append(line["pass"])
        elif "left_out" in line:
            self.left_out.append(line["left_out"])
        elif "about" in line:
            self.about = line["about"]
        self.at = line.get("at", self.at)


def measure(team: Team, spec: Spec, sides: Sequence[Side], repeats: int, show: Progress) -> BenchReport:
    """Measure one side, or two in turns with fresh processes each time.

    The `passes` and `seconds` of `spec` are those of all launches together; a median has `repeats` figures.
    """
    began_s = time.monotonic()
    rounds = repeats if len(sides) == 2 else 1
    share = spec.seconds / (rounds * len(sides))
    spec = dataclasses.replace(spec, passes=AB_PASSES if len(sides) == 2 else repeats, seconds=share)
    launches: list[Launch] = []
    failure = ""
    for number, side in product(range(1, rounds + 1), sides):
        label = f"round {number} of {rounds}, {side.name}: " if len(sides) == 2 else ""
        launches.append(Launch(side.name))
        show(f"{label}starting {counted(team.world_size, 'rank')}")
        try:
            with team.start(spec, side.variables) as children:
                failure = _watch(team, spec, children, launches[-1], lambda text, label=label: show(label + text))  # type: ignore[misc]
        except KeyboardInterrupt:
            failure = STOPPED
        finally:
            team.over()
        if failure:
            break
    report = _report(team.world_size, spec, sides, launches)
    return dataclasses.replace(report, failure=failure, seconds=time.monotonic() - began_s)


def _watch(team: Team, spec: Spec, children: Children, launch: Launch, show: Progress) -> str:
    """Process messages until all ranks have exited, one has failed, or none makes progress; return the problem."""
    moved_s = time.monotonic()
    while True:
        for _, line in children.lines(POLL_S):
            moved_s = time.monotonic()
            launch.take(line)
            if "at" in line:
                show(launch.at)
        if children.failed() or team.elsewhere():
            break
        if children.ended:
            return ""
        still_s = time.monotonic() - moved_s
        if still_s > max(spec.timeout_s + _LATER_S, 0 if launch.at else _START_S):
            return f"no progress for {still_s:.0f} s, {_where(launch)}"
    ends_s = time.monotonic() + GRACE_S
    while not children.ended and time.monotonic() < ends_s:
        for _, line in children.lines(POLL_S):
            launch.take(line)
    failed = {rank.rank: rank for rank in [*children.failed(), *team.elsewhere()]}
    first = culprit(list(failed.values()))
    silent = [rank for rank in children.environments if rank not in failed] if first.victim else []
    if silent:
        return f"rank {silent[0]} is stuck, {_where(launch)} (rank {first.rank} says: {first.error or first.ended})"
    return f"rank {first.rank} {first}, {_where(launch)}"


def _where(launch: Launch) -> str:
    return f"at {launch.at}" if launch.at else "before the rendezvous completed"


def _report(world_size: int, spec: Spec, sides: Sequence[Side], launches: Sequence[Launch]) -> BenchReport:
    by_side = {side.name: [launch for launch in launches if launch.side == side.name] for side in sides}
    repeats = {name: _repeats(own, alone=len(sides) == 1) for name, own in by_side.items()}
    results = []
    for name, key, values in ((name, *item) for name, repeated in repeats.items() for item in repeated.items()):
        cells = [launch.cells[key] for launch in by_side[name] if key in launch.cells]
        facts = {fact: cells[0][fact] for fact in ("operation", "size_bytes", "count")}
        calls, wrong = min(cell["calls"] for cell in cells), sum(cell["wrong_elements"] for cell in cells)
        time_s = estimate(list(values.values()))
        results.append(Result(side=name, **facts, calls=calls, time_s=time_s, wrong_elements=wrong))
    gains = _gains(*(repeats[side.name] for side in sides)) if len(sides) == 2 else []
    own = [(side, name, value) for side in sides for name, value in side.kept.items()]
    notes = [f"your {name}={value} is kept; {side.name} has {side.variables[name]}" for side, name, value in own]
    if world_size == 1:
        notes.append("one rank: nothing crosses a link, and the bus bandwidth is 0 by its definition")
    if len(sides) == 2:
        if sides[0].effective == sides[1].effective:
            notes.append("both presets set the same variables here: every difference is noise")
        notes.append("at 95%, about 1 of 20 comparisons without a real difference shows as faster or slower")
    left_out = {(cell["operation"], cell["size_bytes"]): cell for launch in launches for cell in launch.left_out}
    return BenchReport(
        backend=spec.backend,
        device=spec.device,
        about=next((launch.about for launch in launches if launch.about), {}),
        world_size=world_size,
        dtype=spec.dtype,
        sides=tuple(sides),
        results=tuple(results),
        gains=tuple(gains),
        left_out=tuple(left_out.values()),
        notes=tuple(notes),
    )


def _repeats(launches: Sequence[Launch], *, alone: bool) -> dict[str, dict[int, float]]:
    """Cell -> repeat -> seconds of one call. A repeat is a pass of the only launch, or the median of one's passes."""
    cells: dict[str, dict[int, float]] = {}
    for number, launch in enumerate(launches):
        for key in launch.cells:
            values = [times[key] for times in launch.passes if key in times]
            if values:
                cells.setdefault(key, {}).update(enumerate(values) if alone else [(number, median(values))])
    return cells


def _gains(first: Mapping[str, Mapping[int, float]], second: Mapping[str, Mapping[int, float]]) -> list[Gain]:
    """Return the gain of every cell that both sides have, over their common rounds."""
    gains = []
    for key in first:
        rounds = sorted(first[key].keys() & second.get(key, {}).keys())
        if rounds:
            operation, size = key.split()
            # Bandwidth is one over time: B over A in bandwidth is A over B in time.
            over = estimate([first[key][n] / second[key][n] for n in rounds])
            gains.append(Gain(operation, int(size), over))
    return gains
