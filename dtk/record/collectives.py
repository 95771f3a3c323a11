"""Writes the calls that `dtk.record.wrappers` intercepts to the ring, in a few microseconds each."""

import json
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import distributed_c10d as c10d

from diagnostics.analysis.divergence.identity import signature
from diagnostics.evidence.calls import Wire
from diagnostics.evidence.ring.format import ANY_PEER, FINISHED, NO_PEER, RAISED, STARTED, group_key
from dtk.engines import LIBRARIES
from dtk.parallel.regions import current
from dtk.record.ring import LONGEST_TEXT, Ring
from dtk.record.signatures import Call, Kind

_TORCH = str(Path(torch.__file__).parent)
_DTK = Path(__file__).parents[1]
_STDLIB = sysconfig.get_paths()["stdlib"]
PLUMBING = (_TORCH, *(str(_DTK / part) for part in ("record", "strategies", "parallel")))
"""Frames of these files are never the user's call site."""
_ENGINES = ("torch.", *(f"{library}." for library in LIBRARIES))
"""Modules whose calls the user made: DeepSpeed issues all collectives in one line of each operation."""
HISTORY = 512  # Chosen: hashes kept per group; ranks further apart are compared when the slower one catches up.
MASK = (1 << 64) - 1  # Hashes have 64 bits.
_MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd: Fibonacci hashing (Knuth, vol. 3, 6.4).
_CACHE = 8192  # Chosen: far more than a step issues, from far more lines; beyond it a cache is cleared.
SAMPLED = 512  # Chosen: distinct lines of samples that are kept: the space for strings is for the calls.


class Frames:
    """Searches stacks for the user's frame, and caches the owner of each file.

    It is the innermost outside torch, engines around it, the interpreter and dtk's modules.
    """

    def __init__(self) -> None:
        self._plumbing: dict[str, bool] = {}

    def users(self, frame: FrameType | None) -> FrameType | None:
        """Return the user's innermost frame or, if there is none, the innermost frame outside torch."""
        cache, fallback = self._plumbing, None
        while frame is not None:
            file = frame.f_code.co_filename  # Equal functions of two files have equal code objects.
            is_plumbing = cache.get(file)
            if is_plumbing is None:
                if len(cache) > _CACHE:
                    cache.clear()
                # A file of torch, dtk or the interpreter, or code that torch.compile generated.
                module = str(frame.f_globals.get("__name__"))
                is_stdlib = file.startswith(_STDLIB) and "-packages" not in file
                is_plumbing = is_stdlib or file.startswith((*PLUMBING, "<")) or module.startswith(_ENGINES)
                cache[file] = is_plumbing
            if not is_plumbing:
                return frame
            if fallback is None and not file.startswith((*PLUMBING[:2], "<")):
                fallback = frame
            frame = frame.f_back
        return fallback


def place(frame: FrameType) -> str:
    """Format as `file:line<tab>function`, the form in the ring."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}\t{frame.f_code.co_qualname}"


@dataclass(slots=True, eq=False)
class GroupState:
    """The calls of one process group on this rank."""

    index: int
    key: str
    """Identifies the group: the same on all of its ranks, and on no other group."""
    ranks: tuple[int, ...]
    count: int = 0
    p2p: int = 0
    hash: int = 0
    history: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Rolling hash after each of the last calls."""


Token = tuple[GroupState, int, int]  # A recorded call: its group, the record's id, the position in the group.


_Plan = tuple[tuple[int, int, int], tuple[int, int, int], int, int]
"""Texts (op, user_op, dtype) and (inputs, outputs, reduce_op) of the ring, elements and signature of a call."""


class CollectiveLog:
    """Converts calls to records of the ring and to rolling hashes. Thread-safe."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.step = -1  # The step in progress; -1 before the first.
        self.steps = 0  # Number of steps started in this process.
        self.sound = True  # Whether every call was understood; if not, the hashes prove nothing.
        self.groups: dict[str, GroupState | None] = {}
        self.lock = threading.Lock()
        self.open: dict[int, Token] = {}  # Thread -> the call that it is inside.
        self._expected: dict[int, Token] = {}
        """Data pointer of an output -> the functional collective that fills it, until it is waited for."""
        self.works: WeakKeyDictionary[dist.Work, Token] = WeakKeyDictionary()
        """Work handles of asynchronous calls, whose `wait` blocks this thread."""
        self._generations: dict[str, int] = {}
        self._sampled: set[str] = set()
        self._sites: dict[tuple[CodeType, str, int], int] = {}
        self._frames = Frames()
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def begin(self, kind: Kind, call: Call, user_op: str, frame: FrameType | None) -> Token | None:
        """Record a call; return None if this rank is not in its group or the ring has no space for the group."""
        process_group = call.group
        if process_group is None:
            process_group = c10d._get_default_group()
        elif process_group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        site = self._site(frame)
        region = current()
        while region is not None and region.op is not None:
            region = region.parent
        # Loops of others open no regions: whether autograd runs on this thread tells their reductions of gradients.
        name = region.name if region is not None else "backward" if torch._C._current_graph_task_id() >= 0 else ""
        ring, root = self.ring, NO_PEER
        with self.lock:
            group = self._group(process_group)
            if group is None:
                return None
            if call.root is not None:
                everywhere, within = call.root
                root = ANY_PEER if everywhere is None else everywhere
                root = root if within is None else group.ranks[within]
            named, shaped, numel, signature = self._plan(kind, call, user_op, root)
            if kind.p2p:
                group.p2p += 1
                seq, signature = group.p2p, 0
            else:
                group.hash = ((group.hash ^ signature) * _MULTIPLIER + 1) & MASK
                group.history.append(group.hash)
                group.count = seq = group.count + 1
            at = (group.index, seq, STARTED, self.step)
            texts = (site, ring.text(name) if name else 0, *named)
            sizes = (*shaped, ring.text(_short(call.splits) if call.splits else ""))
            numbers = (root, call.tag, numel, call.amount, signature)
            number = ring.begin(at, texts, sizes, numbers, kind.p2p, call.asynchronous)
            token = self.open[threading.get_ident()] = (group, number, seq)
        return token

    def end(self, token: Token, state: int, p2p: bool) -> None:
        """Record that the call returned, or that it raised, in `state`."""
        group, number, seq = token
        with self.lock:
            self.open.pop(threading.get_ident(), None)
            self.ring.end(number, group.index, seq, state, p2p)

    def expect(self, token: Token, outputs: Sequence[torch.Tensor]) -> None:
        """Register the outputs of a call: waiting for one of these tensors waits for the call."""
        if len(self._expected) > _CACHE:  # Point-to-point outputs are never waited for here.
            self._expected.clear()
        for output in outputs:
            self._expected[output.data_ptr()] = token

    def expected(self, output: torch.Tensor) -> Token | None:
        """Return the call that fills a tensor and forget it; None if it is unknown."""
        return self._expected.pop(output.data_ptr(), None)

    def awaited(self, token: Token | None, wait: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `wait`, which returns when this call has completed; meanwhile its state is STARTED."""
        if token is None:
            return wait(*args, **kwargs)
        with self.lock:
            self.open[threading.get_ident()] = token
            self.ring.state(token[1], STARTED)
        state = RAISED
        try:
            result = wait(*args, **kwargs)
            state = FINISHED
        finally:
            with self.lock:
                self.open.pop(threading.get_ident(), None)
                self.ring.returned += 1
                self.ring.state(token[1], state)
        return result

    def begin_step(self, step: int) -> None:
        """Mark the start of step `step`, counted from 1."""
        self.step = step
        self.steps += 1

    def lose(self) -> None:
        """Record that a call could not be recorded."""
        self.sound = False
        self.ring.unsound()

    def forget(self, name: str | None) -> None:
        """Remove a destroyed group (None: all of them); a new group may reuse its name.

        Counters of other groups continue, as members destroy this one at different positions of the others.
        """
        with self.lock:
            if name is None:
                self.groups.clear()
            else:
                self.groups.pop(name, None)

    def _group(self, process_group: Any) -> GroupState | None:
        name = process_group if isinstance(process_group, str) else process_group.group_name
        if name in self.groups:
            return self.groups[name]
        if isinstance(process_group, str):
            process_group = _resolve_process_group(process_group)  # type: ignore[arg-type]
        generation = self._generations[name] = self._generations.get(name, -1) + 1
        ranks = tuple(c10d.get_process_group_ranks(process_group))
        index = self.ring.add_group(name, ranks, str(process_group.group_desc or ""), generation)
        state = None if index is None else GroupState(index, group_key(name, ranks, generation), ranks)
        self.groups[name] = state
        return state

    def _plan(self, kind: Kind, call: Call, user_op: str, root: int) -> _Plan:
        """Return the cached part of a call, which is the same for all calls of its kind."""
        inputs, outputs = call.inputs, call.outputs
        first = inputs[0] if inputs else outputs[0] if outputs else None
        dtype = None if first is None else first.dtype
        key = (kind.op, user_op, dtype, call.reduce_op, root, call.amount, _shapes(inputs), _shapes(outputs))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > _CACHE:
                self._plans.clear()
            text = self.ring.text
            reduce_op = "" if call.reduce_op is None else reduce_name(call.reduce_op)
            numbers = (call.amount,) if call.amount >= 0 else ()
            dtypes = (str(dtype),) if kind.typed else ()
            wire = Wire(kind.wire, numbers, dtypes, None if root == NO_PEER else root, reduce_op)
            dtype_text = "" if dtype is None else str(dtype).removeprefix("torch.")
            sizes = [_short([list(t.shape) for t in side]) if side else "" for side in (inputs, outputs)]
            named = text(kind.op), text(user_op), text(dtype_text)
            shaped = text(sizes[0]), text(sizes[1]), text(reduce_op)
            plan = named, shaped, sum(t.numel() for t in inputs or outputs), signature(wire)
            self._plans[key] = plan
        return plan

    def sample(self, frame: FrameType | None) -> None:
        """Record a sample of the main thread in this frame, unless it is inside a call."""
        if frame is None or threading.main_thread().ident in self.open:
            return
        if (chosen := self._frames.users(frame)) is None:
            return
        text = place(chosen)
        if text in self._sampled or len(self._sampled) < SAMPLED:
            self._sampled.add(text)
            with self.lock:
                self.ring.sample(self.ring.text(text))

    def _site(self, frame: FrameType | None) -> int:
        """Return the index of the text `file:line<tab>function` of the user's frame."""
        chosen = self._frames.users(frame)
        if chosen is None:
            return 0
        key = (chosen.f_code, chosen.f_code.co_filename, chosen.f_lasti)  # Copies of a file have equal code objects.
        index = self._sites.get(key)
        if index is None:
            if len(self._sites) > _CACHE:
                self._sites.clear()
            with self.lock:
                index = self._sites[key] = self.ring.text(place(chosen))
        return index


def _shapes(tensors: Any) -> Any:
    return (tensors[0].shape,) if len(tensors) == 1 else tuple([t.shape for t in tensors])


def reduce_name(op: Any) -> str:
    """Return the name of a ReduceOp, however torch wraps it: `SUM`."""
    return str(getattr(getattr(op, "op", op), "name", op))


def _short(value: Any) -> str:
    """Format as JSON; empty if it exceeds the maximum length of a text."""
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= LONGEST_TEXT else ""
