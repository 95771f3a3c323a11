"""Temporary torch settings that fake tensors need."""

import gc
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dtk.errors import DtkError
from dtk.parallel import regions
from dtk.simulate.ledger import Ledger

_VIEW_WARNING = r"FSDP2-wrapped module .* returned a view tensor"


def check_torch() -> None:
    """Check that this torch has the internals that simulated steps need; DtkError if an internal is missing."""
    needed = {"_current_autograd_node": torch._C, "_get_sequence_nr": getattr(torch._C, "_autograd", None)}
    missing = [name for name, owner in needed.items() if not hasattr(owner, name)]
    if missing:
        what, why = f"torch {torch.__version__} cannot simulate a step", f"it lacks {', '.join(missing)}"
        raise DtkError(what, why, "use the torch version that dtk is tested with, or the closed form")


class Reducer:
    """DDP's reducer, whose bookkeeping needs integers with values when it rebuilds its buckets."""

    def __init__(self, reducer: Any, ledger: Ledger) -> None:
        self._reducer = reducer
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        self._ledger.host_numbers = True
        try:
            return bool(self._reducer._rebuild_buckets())
        finally:
            self._ledger.host_numbers = False


@contextmanager
def propagation_ignored(ledger: Ledger) -> Iterator[None]:
    """Ignore the memory of DTensor's shape propagation, which runs operations on full fake tensors under a lock."""
    try:
        propagator: Any = importlib.import_module("torch.distributed.tensor._sharding_prop").ShardingPropagator
        lock = propagator._fake_mode_lock
    except (ImportError, AttributeError):  # It overcounts only the first step, which is not reported.
        yield
        return
    propagator._fake_mode_lock = ledger.pause
    try:
        yield
    finally:
        propagator._fake_mode_lock = lock


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore what set-up changes in the process: listeners, random state, flags; garbage collection is disabled.

    FSDP2's warning about views is suppressed, as it concerns the run and not the plan.
    """
    observers, report = regions._observers, regions._report
    deterministic = torch.are_deterministic_algorithms_enabled()
    matmul, cudnn, collects = torch.backends.cuda.matmul, torch.backends.cudnn, gc.isenabled()
    tf32 = matmul.allow_tf32, cudnn.allow_tf32
    gc.disable()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_VIEW_WARNING)
            yield
    finally:
        regions.observe(observers, report)
        torch.use_deterministic_algorithms(deterministic)
        matmul.allow_tf32, cudnn.allow_tf32 = tf32
        if collects:
            gc.enable()
