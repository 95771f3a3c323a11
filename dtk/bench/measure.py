"""Launches ranks, for one preset or two in turns, and builds the report from their figures. Times nothing itself."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import Any

from diagnostics.contract.formatting import counted
from dtk.bench.model import BenchReport, Gain, Result, Side, Spec, key_of
from dtk.bench.team import GRACE_S, POLL_S, Team
from dtk.compare.statistics import estimate
from dtk.launch.children import Children, culprit

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
