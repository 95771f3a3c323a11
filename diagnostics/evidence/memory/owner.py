"""What a block of memory is for, by the stack in which it was allocated: torch's own files tell, names of users do not.

The innermost frame that says anything counts. Sources: torch/optim, torch/distributed/fsdp and torch/nn/modules of
torch 2.1 to 2.13; C++ frames are there when the history was recorded with `stacks="all"`. Knows no snapshot.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from diagnostics.evidence.memory import levels

BACKWARD = "made in the backward pass"
"""A gradient if it lives on into the optimizer's step; which only its release tells."""
REDUCED = "made to reduce gradients"
"""What goes into the collective, or the gradient that comes out of it; told apart as those."""
MAX_FRAMES = 256
_ENGINE = ("torch::autograd::Engine", "torch::autograd::AccumulateGrad")
_STATES = frozenset({"_init_group", "_init_state", "load_state_dict"})
_SHARDING = ("/torch/distributed/fsdp/", "/torch/distributed/_composable/fsdp/")
_SHARDS = frozenset({"_init_sharded_param", "_init_flat_param_and_metadata", "flatten_tensors"})
_MOVES = ("gather", "unshard", "copy_in", "alloc")
_CALLS = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/_functional_collectives.py")
_MODULE, _MODULES = "/torch/nn/modules/module.py", "/torch/nn/modules/"
_CALLED = frozenset({"_call_impl", "_wrapped_call_impl"})
_MOVED = frozenset({"_apply", "convert", "to_empty"})
_MADE = frozenset({"__init__", "reset_parameters"})


def owner(event: Mapping[str, Any]) -> str:
    """One of the words of `levels`, `BACKWARD` or `REDUCED`.

    Args:
        event: an allocation of the history or a block, with `frames`, innermost first.
    """
    if event.get("forward_frames"):
        return BACKWARD  # torch keeps the stack of the forward pass beside what its gradient allocates
    frames = event.get("frames")
    for raw in frames[:MAX_FRAMES] if isinstance(frames, list | tuple) else ():
        if isinstance(raw, dict):
            purpose = _of_frame(str(raw.get("filename", ""))[:512], str(raw.get("name", ""))[:512])
            if purpose:
                return purpose
    return levels.UNKNOWN


@lru_cache(maxsize=1 << 14)
def _of_frame(file: str, name: str) -> str:
    """Return the owner that a frame shows, or an empty text."""
    if name.startswith(_ENGINE):
        return BACKWARD
    file = "/" + file.replace("\\", "/").lstrip("/")
    if "/torch/" not in file:
        return ""
    if name == "_engine_run_backward" or (file.endswith("/torch/autograd/__init__.py") and name == "_make_grads"):
        return BACKWARD
    if "/torch/optim/" in file:
        return levels.OPTIMIZER if name in _STATES else levels.TEMPORARIES
    if any(folder in file for folder in _SHARDING):
        moves = levels.BUFFERS if any(word in name for word in _MOVES) else ""
        return levels.PARAMETERS if name in _SHARDS else REDUCED if "reduce" in name else moves
    if file.endswith(_CALLS) or (file.endswith("/torch/nn/parallel/distributed.py") and name == "_ddp_init_helper"):
        return levels.BUFFERS
    if file.endswith(_MODULE):
        return levels.ACTIVATIONS if name in _CALLED else levels.PARAMETERS if name in _MOVED else ""
    made = (_MODULES in file and name in _MADE) or file.endswith("/torch/nn/parameter.py")
    return levels.PARAMETERS if made else ""
