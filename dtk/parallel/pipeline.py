"""Pipeline schedules as data: what each rank of a pipeline computes, sends and receives, in order.

Ranks execute this list, declarations count its messages, and the plan simulates its time. Torch's own schedules cannot
be listed without process groups, and the order that torch 2.13 reports for its 1F1B is not the one it runs.

Sources: Huang et al. 2019, "GPipe"; Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
Clusters", section 2.2 (1F1B and interleaved); Lamy-Poirier 2023, "Breadth-First Pipeline Parallelism"; Qi et al. 2023,
"Zero Bubble Pipeline Parallelism", section 2 (ZB-H1); Qi et al. 2024, "Pipeline Parallelism with Controllable Memory".
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, NamedTuple

from diagnostics.contract.formatting import counted
from dtk.errors import DtkError

Kind = Literal[
    "forward", "backward", "input_gradient", "weight_gradient", "send_forward", "receive_forward", "send_backward",
    "receive_backward",
]  # fmt: skip
"""`backward` computes both gradients; a schedule that splits it uses the last two kinds instead."""


class Action(NamedTuple):
    """One action of a rank."""

    kind: Kind
    stage: int
    """Index in the whole pipeline, see `Pipeline.rank_of`."""
    micro_batch: int


Order = tuple[Action, ...]  # The actions of one rank, in order.
FREES: tuple[Kind, ...] = ("backward", "weight_gradient")
"""Actions after which a rank no longer holds the activations of the micro-batch."""
SENDS: tuple[Kind, ...] = ("send_forward", "send_backward")
RECEIVES: tuple[Kind, ...] = ("receive_forward", "receive_backward")
OUTSTANDING = 2
"""Limit of messages in flight per rank: gloo reports a finished send only when it is waited for, so more would
accumulate until the end of the step. Waiting cannot deadlock, as all ranks send and receive in one common order."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A schedule for given numbers of ranks, stages and micro-batches."""

    schedule: str
    ranks: int
    micro_batches: int
    stages_per_rank: int = 1

    @property
    def stages(self) -> int:
        """Number of stages of the whole pipeline."""
        return self.ranks * self.stages_per_rank

    @property
    def round(self) -> int:
        """Micro-batches that go through a rank's stages as a group: about as many as there are ranks."""
        rounds = 1 if self.schedule == "looped_bfs" else max(1, self.micro_batches // self.ranks)
        return self.micro_batches // rounds

    @property
    def vee(self) -> bool:
        """Whether stages are placed in a V, down the ranks and up again: the first and the last share a rank."""
        return SCHEDULES[self.schedule].ahead is None

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank."""
        return (rank, self.stages - 1 - rank) if self.vee else tuple(range(rank, self.stages, self.ranks))

    def rank_of(self, stage: int) -> int:
        """Return the rank that has a stage."""
        return self.stages - 1 - stage if self.vee and stage >= self.ranks else stage % self.ranks

    def check(self) -> None:
        """Reject what the schedule does not support; DtkError with the fix."""
        typed, count, ranks = f"parallel.schedule={self.schedule}", self.micro_batches, self.ranks
        virtual, (least, most) = self.stages_per_rank, SCHEDULES[self.schedule].per_rank
        if not least <= virtual <= most:
            what = f"{typed} has {counted(least, 'stage')}{' or more' if most > least else ''} on each rank"
            fix = f"use parallel.stages_per_rank={max(least, min(virtual, most))}"
            other = "1f1b" if virtual == 1 else "interleaved_1f1b"
            raise DtkError(what, f"parallel.stages_per_rank={virtual}", f"{fix}, or parallel.schedule={other}")
        rounds = max(1, count // self.round)
        if virtual > 1 and not self.vee and count % rounds:
            what = f"{typed} cannot divide {count} micro-batches over {ranks} ranks"
            why = f"it works in {rounds} rounds of the same number of micro-batches"
            raise DtkError(what, why, f"use parallel.microbatches={count // ranks * ranks}")

    def orders(self) -> tuple[Order, ...]:
        """Return the actions of each rank, including messages; the same object for equal pipelines."""
        return _orders(self)[0]

    @property
    def ideal_bubble(self) -> float:
        """Idle share of a rank's time if all stages take equally long and messages take no time.

        (p-1)/(v m+p-1) for v stages per rank, (p-1)/(3 v m+p-1) where weight gradients fill it; simulated with a
        backward that takes twice as long as the forward.
        """
        return walk(self, lambda action: 2.0 if action.kind == "backward" else 1.0).bubble

    def in_flight(self, rank: int) -> int:
        """Return the peak number of micro-batches, counted once per stage, whose activations a rank holds."""
        now = most = 0
        for action in self.orders()[rank]:
            now += (action.kind == "forward") - (action.kind in FREES)
            most = max(most, now)
        return most


@dataclass(frozen=True, slots=True)
class Timeline:
    """The simulated times of a pipeline step."""

    end_s: float
    busy_s: tuple[float, ...]  # Of each rank.

    @property
    def bubble(self) -> float:
        """Idle share of the time, averaged over ranks."""
        return 1 - sum(self.busy_s) / (len(self.busy_s) * self.end_s)


def walk(pipeline: Pipeline, seconds: Callable[[Action], float], message_s: float = 0.0) -> Timeline:
    """Simulate the schedule; `seconds`: duration of a computation, whose result arrives elsewhere `message_s` later."""
    clock, busy = [0.0] * pipeline.ranks, [0.0] * pipeline.ranks
    arrives: dict[Action, float] = {}
    for rank, action in _orders(pipeline)[1]:
        if action.kind in SENDS:
            arrives[_received(action)] = clock[rank] + message_s
        else:
            took = seconds(action)
            clock[rank] = max(clock[rank], arrives.get(_needed(action), 0.0)) + took
            busy[rank] += took
    return Timeline(max(clock), tuple(busy))


@functools.lru_cache(maxsize=1 << 16)
def _received(send: Action) -> Action:
    forward = send.kind == "send_forward"
    return Action(RECEIVES[not forward], send.stage + (1 if forward else -1), send.micro_batch)


@functools.lru_cache(maxsize=1 << 16)
def _needed(compute: Action) -> Action:
    """Return the receive that a computation waits for, or None if its neighbour is on the same rank."""
    return Action(RECEIVES[compute.kind != "forward"], compute.stage, compute.micro_batch)


def _computes(pipeline: Pipeline, rank: int) -> list[Action]:
    """Return the warm-up forwards, then alternating forwards and backwards, then the remaining backwards.

    Weight gradients of a split backward come `rank` backwards later: no rank waits for them, and all hold equally much.
    """
    schedule, stages = SCHEDULES[pipeline.schedule], pipeline.stages_of(rank)
    if schedule.ahead is None:
        return _vee(pipeline, rank)
    kind: Kind = "input_gradient" if schedule.splits else "backward"
    ahead = schedule.ahead(pipeline, rank)
    count, size = pipeline.micro_batches, pipeline.round
    rounds = [range(first, min(first + size, count)) for first in range(0, count, size)]
    forwards = [Action("forward", stage, i) for part in rounds for stage in stages for i in part]
    backwards = [Action(kind, stage, i) for part in rounds for stage in reversed(stages) for i in part]
    weights = [None] * rank + [a._replace(kind="weight_gradient") for a in backwards] if schedule.splits else []
    turns = zip_longest(forwards[ahead:], backwards, weights)
    return [*forwards[:ahead], *(action for turn in turns for action in turn if action is not None)]


def _vee(pipeline: Pipeline, rank: int) -> list[Action]:
    kinds: tuple[Kind, ...] = ("forward", "input_gradient", "weight_gradient")
    down, up = ([(kind, stage) for kind in kinds] for stage in pipeline.stages_of(rank))
    count, lead = pipeline.micro_batches, pipeline.ranks - rank
    steady = [*down, *up] * (count - pipeline.ranks)
    turns = [down[0]] * (2 * lead - 1) + [up[0], down[0]] * rank + up * lead + steady
    # As forwards run out, weight gradients wait for the end: other ranks wait for input gradients only.
    turns += [down[1], up[1]] * rank + down[1:] * lead + [up[2], down[2]] * count
    done, order = Counter[tuple[Kind, int]](), list[Action]()
    for turn in turns:
        if done[turn] < count:
            order.append(Action(*turn, done[turn]))
            done[turn] += 1
    return order


@dataclass(frozen=True, slots=True)
class Schedule:
    """Properties of a schedule."""

    ahead: Callable[[Pipeline, int], int] | None
    """Forwards of a rank before its first backward: activations of one more micro-batch are held. None: in a V."""
    per_rank: tuple[int, float] = (1, 1)
    """Least and most stages on each rank."""
    splits: bool = False
    """Whether input and weight gradients are computed separately."""


_SEVERAL = (2, math.inf)
SCHEDULES: Mapping[str, Schedule] = {
    # All forwards, then all backwards: every micro-batch is held.
    "gpipe": Schedule(lambda p, rank: p.micro_batches),
    "looped_bfs": Schedule(lambda p, rank: p.stages_per_rank * p.micro_batches, _SEVERAL),
    # One forward, one backward: a micro-batch is held for each stage behind.
    "1f1b": Schedule(lambda p, rank: p.ranks - 1 - rank),
    "interleaved_1f1b": Schedule(
        lambda p, rank: (p.stages_per_rank - 1) * p.round + 2 * (p.ranks - 1 - rank), _SEVERAL
    ),
    # Weight gradients fill the bubble: ZB-H1 with one stage on each rank, and ZB-V.
    "zero_bubble": Schedule(
        lambda p, rank: (p.stages_per_rank - 1) * p.round + p.ranks - 1 - rank, (1, math.inf), splits=True
    ),
    "zbv": Schedule(None, (2, 2), splits=True),
}
"""Schedules that `parallel.schedule` selects; the only list."""


@functools.lru_cache(maxsize=64)
def _orders(pipeline: Pipeline) -> tuple[tuple[Order, ...], list[tuple[int, Action]]]:
    """Insert the messages between the computations; also return (rank, computation or send) in one possible order."""
    # A send is appended to this rank's list and its receive to the other's at the same moment, so all ranks share one
    # order of all messages: no circular wait is possible, even if messages match by order alone (NCCL).
    queues = [_computes(pipeline, rank) for rank in range(pipeline.ranks)]
    orders: list[list[Action]] = [[] for _ in queues]
    sequence: list[tuple[int, Action]] = []
    at, last = [0] * len(queues), pipeline.stages - 1
    running: set[Action] = set()
    """Inputs that have arrived."""
    while any(i < len(queue) for i, queue in zip(at, queues)):
        progress = False
        for rank, queue in enumerate(queues):
            if at[rank] == len(queue):
                continue
            action = queue[at[rank]]
            outer = 0 if action.kind == "forward" else last
            if action.kind != "weight_gradient" and action.stage != outer and _needed(action) not in running:
                continue
            at[rank] += 1
            progress = True
            orders[rank].append(action)
            sequence.append((rank, action))
            if action.kind == "weight_gradient" or action.stage == (last if action.kind == "forward" else 0):
                continue
            send = Action("send_forward" if action.kind == "forward" else "send_backward", *action[1:])
            receive = _received(send)
            running.add(receive)
            if (to := pipeline.rank_of(receive.stage)) != rank:
                orders[rank].append(send)
                sequence.append((rank, send))
                orders[to].append(receive)
        if not progress:
            raise ValueError(f"{pipeline} waits for itself")
    return tuple(map(tuple, orders)), sequence


def forward_only(pipeline: Pipeline, micro_batches: int) -> tuple[Order, ...]:
    """Return each rank's actions in an evaluation: the forward of every micro-batch through all stages."""
    forward = ("forward", "send_forward", "receive_forward")
    orders = replace(pipeline, micro_batches=micro_batches).orders()
    return tuple(tuple(action for action in order if action.kind in forward) for order in orders)


def stage_sizes(layers: int, stages: int, head_blocks: float = 0.0) -> list[int]:
    """Return the blocks per stage, with the smallest possible maximum; the first, which embeds, is no larger one.

    `head_blocks` is the cost of the last stage's output projection in blocks.
    """
    if (others := stages - 1) == 0:
        return [layers]
    last = min(range(layers // stages, 0, -1), key=lambda last: max(-(-(layers - last) // others), last + head_blocks))
    share, rest = divmod(layers - last, others)
    return [*(share + (stage >= others - rest) for stage in range(others)), last]
