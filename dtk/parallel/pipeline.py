"""Pipeline schedules as data: what each rank of a pipeline computes, sends and receives, in order.

Ranks execute this list, declarations count its messages, and the plan simulates its time. Torch's own schedules cannot
be listed without process groups, and the order that torch 2.13 reports for its 1F1B is not the one it runs.

Sources: Huang et al. 2019, "GPipe"; Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
Clusters", section 2.2 (1F1B and interleaved); Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2 (ZB-H1).
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

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
    """Index in the whole pipeline; stage s is on rank s modulo the number of pipeline ranks."""
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
    """One of `SCHEDULES`."""
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
        return self.micro_batches // max(1, self.micro_batches // self.ranks)

    def check(self) -> None:
        """Reject what the schedule does not support; DtkError with the fix."""
        virtual, typed = SCHEDULES[self.schedule].virtual, f"parallel.schedule={self.schedule}"
        count, ranks = self.micro_batches, self.ranks
        if virtual and self.stages_per_rank < 2:
            what = f"{typed} needs several stages on each rank"
            why = f"parallel.stages_per_rank={self.stages_per_rank}"
            raise DtkError(what, why, "use parallel.stages_per_rank=2, or parallel.schedule=1f1b")
        if not virtual and self.stages_per_rank > 1:
            what = f"{typed} has one stage on each rank, not {self.stages_per_rank}"
            raise DtkError(what, fix="use parallel.stages_per_rank=1, or parallel.schedule=interleaved_1f1b")
        rounds = max(1, count // ranks)
        if virtual and count % rounds:
            what = f"{typed} cannot divide {count} micro-batches over {ranks} ranks"
            why = f"it works in {rounds} rounds of the same number of micro-batches"
            raise DtkError(what, why, f"use parallel.microbatches={count // ranks * ranks}")

    def orders(self) -> tuple[Order, ...]:
        """Return the actions of each rank, including messages; the same object for equal pipelines."""
        return _orders(self)

    @property
    def ideal_bubble(self) -> float:
        """Idle share of a rank's time if all stages take equally long and messages take no time.

        (p-1)/(m+p-1) for gpipe and 1f1b, (p-1)/(v m+p-1) for v stages per rank; otherwise simulated with a backward
        that takes twice as long as the forward.
        """
        return walk(self, lambda action: 2.0 if action.kind == "backward" else 1.0).bubble

    def held(self, rank: int) -> int:
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
    busy_s: tuple[float, ...]
    """Compute time of each rank in seconds."""

    @property
    def bubble(self) -> float:
        """Idle share of the time, averaged over ranks."""
        return 1 - sum(self.busy_s) / (len(self.busy_s) * self.end_s)


def walk(pipeline: Pipeline, seconds: Callable[[Action], float], message_s: float = 0.0) -> Timeline:
    """Simulate the schedule.

    `seconds` returns the duration of a computation; its result arrives on another rank `message_s` after its end.
    """
    orders = pipeline.orders()
    clock, busy, at = [0.0] * len(orders), [0.0] * len(orders), [0] * len(orders)
    sent: dict[Action, float] = {}
    waiting = set(range(len(orders)))
    while waiting:
        for rank in sorted(waiting):
            order = orders[rank]
            while at[rank] < len(order):
                action = order[at[rank]]
                if action.kind in SENDS:
                    sent[_received(action)] = clock[rank] + message_s
                elif action.kind in RECEIVES:
                    if action not in sent:
                        break
                else:
                    took = seconds(action)
                    clock[rank] = max(clock[rank], sent.get(_needed(action), 0.0)) + took
                    busy[rank] += took
                at[rank] += 1
            else:
                waiting.discard(rank)
    return Timeline(max(clock), tuple(busy))


@functools.lru_cache(maxsize=1 << 16)
def _received(send: Action) -> Action:
    if send.kind == "send_forward":
        return Action("receive_forward", send.stage + 1, send.micro_batch)
    return Action("receive_backward", send.stage - 1, send.micro_batch)


@functools.lru_cache(maxsize=1 << 16)
def _needed(compute: Action) -> Action:
    """Return the receive that a computation waits for, or None if its neighbour is on the same rank."""
    kind: Kind = "receive_forward" if compute.kind == "forward" else "receive_backward"
    return Action(kind, compute.stage, compute.micro_batch)


def _computes(pipeline: Pipeline, rank: int) -> list[Action]:
    """Return the warm-up forwards, then alternating forwards and backwards, then the remaining backwards."""
    schedule = SCHEDULES[pipeline.schedule]
    if schedule.ahead is None:
        return _zero_bubble_orders(pipeline.ranks, pipeline.micro_batches)[rank]
    ahead, stages = schedule.ahead(pipeline, rank), range(rank, pipeline.stages, pipeline.ranks)
    count, size = pipeline.micro_batches, pipeline.round
    rounds = [range(first, min(first + size, count)) for first in range(0, count, size)]
    forwards = [Action("forward", stage, i) for part in rounds for stage in stages for i in part]
    backwards = [Action("backward", stage, i) for part in rounds for stage in reversed(stages) for i in part]
    pairs = zip(forwards[ahead:], backwards)
    return [*forwards[:ahead], *chain.from_iterable(pairs), *backwards[max(0, len(forwards) - ahead) :]]


@functools.lru_cache(maxsize=64)
def _zero_bubble_orders(ranks: int, count: int) -> list[list[Action]]:
    """1F1B with weight gradients that fill the gaps, simulated with one tick per computation."""
    # Most urgent first: other ranks wait for an input gradient, none for a weight gradient. A forward needs room, as no
    # rank holds more than `ranks` micro-batches, the peak of 1F1B.
    kinds: tuple[Kind, ...] = ("input_gradient", "forward", "weight_gradient")
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    done: list[dict[Kind, int]] = [dict.fromkeys(kinds, 0) for _ in range(ranks)]
    while any(counts["weight_gradient"] < count for counts in done):
        before = [dict(counts) for counts in done]
        for rank, (order, counts) in enumerate(zip(orders, done)):
            ready = {
                "input_gradient": before[rank + 1]["input_gradient"] if rank + 1 < ranks else counts["forward"],
                "forward": min(before[rank - 1]["forward"] if rank else count, counts["weight_gradient"] + ranks),
                "weight_gradient": counts["input_gradient"],
            }
            kind = next((kind for kind in kinds if counts[kind] < ready[kind]), None)
            if kind is not None:
                order.append(Action(kind, rank, counts[kind]))
                counts[kind] += 1
    return orders


@dataclass(frozen=True, slots=True)
class Schedule:
    """Properties of a schedule."""

    ahead: Callable[[Pipeline, int], int] | None
    """Forwards of a rank before its first backward: activations of one more micro-batch are held. None if the schedule
    does not alternate forwards and backwards."""
    summary: str
    virtual: bool = False
    """Whether it needs several stages on each rank."""
    splits: bool = False
    """Whether input and weight gradients are computed separately."""


SCHEDULES: Mapping[str, Schedule] = {
    "gpipe": Schedule(lambda p, rank: p.micro_batches, "all forwards, then all backwards; holds every micro-batch"),
    "1f1b": Schedule(
        lambda p, rank: p.ranks - 1 - rank, "one forward, one backward; holds one micro-batch per stage behind"
    ),
    "interleaved_1f1b": Schedule(
        lambda p, rank: (p.stages_per_rank - 1) * p.round + 2 * (p.ranks - 1 - rank),
        "1f1b over several stages per rank: smaller bubble",
        virtual=True,
    ),
    "zero_bubble": Schedule(None, "1f1b whose weight gradients fill the bubble (ZB-H1)", splits=True),
}
"""Schedules that `parallel.schedule` selects; the only list."""


@functools.lru_cache(maxsize=64)
def _orders(pipeline: Pipeline) -> tuple[Order, ...]:
    """Insert the messages between the computations."""
    # A send is appended to this rank's list and its receive to the other's at the same moment, so all ranks share one
    # order of all messages: no circular wait is possible, even if messages match by order alone (NCCL).
    queues = [_computes(pipeline, rank) for rank in range(pipeline.ranks)]
    orders: list[list[Action]] = [[] for _ in queues]
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
            if action.kind == "weight_gradient" or action.stage == (last if action.kind == "forward" else 0):
                continue
            send = Action("send_forward" if action.kind == "forward" else "send_backward", *action[1:])
            receive = _received(send)
            running.add(receive)
            if receive.stage % pipeline.ranks != rank:
                orders[rank].append(send)
                orders[receive.stage % pipeline.ranks].append(receive)
        if not progress:
            raise ValueError(f"{pipeline} waits for itself")
    return tuple(tuple(order) for order in orders)


def forward_only(ranks: int, stages_per_rank: int, micro_batches: int) -> tuple[Order, ...]:
    """Return each rank's actions in an evaluation: the forward of every micro-batch through all stages."""
    whole = Pipeline("interleaved_1f1b" if stages_per_rank > 1 else "gpipe", ranks, micro_batches, stages_per_rank)
    forward = ("forward", "send_forward", "receive_forward")
    return tuple(tuple(action for action in order if action.kind in forward) for order in whole.orders())


def stage_sizes(layers: int, stages: int, head_blocks: float = 0.0) -> list[int]:
    """Return the blocks per stage, with the smallest possible maximum; the first stage, which embeds, is not a larger
    one.

    `head_blocks` is the cost of the last stage's output projection in blocks.
    """
    if (others := stages - 1) == 0:
        return [layers]
    last = min(range(layers // stages, 0, -1), key=lambda last: max(-(-(layers - last) // others), last + head_blocks))
    share, rest = divmod(layers - last, others)
    return [*(share + (stage >= others - rest) for stage in range(others)), last]
