"""What a block is for, by the frames in which it was allocated."""

import pytest

from diagnostics.evidence.memory import levels
from diagnostics.evidence.memory.history import BACKWARD, MAX_FRAMES, REDUCED, owner

SITE = "/lib/python3.12/site-packages"


def of(*frames, **event):
    return owner({"frames": [{"filename": file, "name": name, "line": 1} for file, name in frames], **event})


@pytest.mark.parametrize(
    ("file", "name", "word"),
    [
        (f"{SITE}/torch/optim/adamw.py", "_init_group", levels.OPTIMIZER),
        (f"{SITE}/torch/optim/adamw.py", "step", levels.TEMPORARIES),
        (f"{SITE}/torch/nn/modules/module.py", "_call_impl", levels.ACTIVATIONS),
        (f"{SITE}/torch/nn/modules/module.py", "_apply", levels.PARAMETERS),
        (f"{SITE}/torch/nn/modules/linear.py", "__init__", levels.PARAMETERS),
        (f"{SITE}/torch/nn/parameter.py", "__new__", levels.PARAMETERS),
        (f"{SITE}/torch/distributed/fsdp/_flat_param.py", "_init_flat_param_and_metadata", levels.PARAMETERS),
        (f"{SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather", levels.BUFFERS),
        (f"{SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce", REDUCED),
        (f"{SITE}/torch/distributed/distributed_c10d.py", "all_reduce", levels.BUFFERS),
        (f"{SITE}/torch/nn/parallel/distributed.py", "_ddp_init_helper", levels.BUFFERS),
        (f"{SITE}/torch/autograd/graph.py", "_engine_run_backward", BACKWARD),
        (f"{SITE}/torch/autograd/__init__.py", "_make_grads", BACKWARD),
        ("/build/engine.cpp", "torch::autograd::Engine::evaluate_function(...)", BACKWARD),
        ("C:\\py\\torch\\optim\\sgd.py", "step", levels.TEMPORARIES),
        ("/home/me/train.py", "step", levels.UNKNOWN),
        (f"{SITE}/torch/_tensor.py", "backward", levels.UNKNOWN),
        ("/home/me/optim/adamw.py", "_init_group", levels.UNKNOWN),
    ],
)
def test_torchs_own_files_tell(file, name, word):
    assert of((file, name)) == word


def test_the_innermost_frame_that_says_anything_counts():
    module, optimizer = f"{SITE}/torch/nn/modules/module.py", f"{SITE}/torch/optim/adamw.py"
    silent = ("/home/me/model.py", "forward")
    assert of(silent, (module, "_call_impl"), (optimizer, "step")) == levels.ACTIVATIONS
    assert of(silent, (optimizer, "step"), (module, "_call_impl")) == levels.TEMPORARIES


def test_torch_keeps_the_stack_of_the_forward_pass_beside_that_of_a_gradient():
    assert of(("/home/me/train.py", "step"), forward_frames=["linear"]) == BACKWARD


@pytest.mark.parametrize("frames", [None, "text", [], [None, 3, {"filename": 3}]])
def test_without_frames_nothing_is_known(frames):
    assert owner({"frames": frames}) == levels.UNKNOWN


def test_a_stack_without_end_has_one():
    silent = [("/home/me/model.py", f"f{n}") for n in range(MAX_FRAMES)]
    assert of(*silent, (f"{SITE}/torch/optim/adamw.py", "step")) == levels.UNKNOWN


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["full_tensor"], levels.SAVED),
        (["full_tensor", "_gather_state_dict", "get_model_state_dict"], levels.SAVED),
        (["_broadcast_state_dict", "_load_model_state_dict", "set_model_state_dict"], levels.BUFFERS),
        (["sharded_state_dict"], levels.BUFFERS),
    ],
)
def test_a_collective_is_one_of_a_state_dict_that_is_built(names, word):
    outer = [(f"{SITE}/torch/distributed/checkpoint/state_dict.py", name) for name in names]
    innermost = (f"{SITE}/torch/distributed/_functional_collectives.py", "all_gather_tensor")
    assert of(innermost, *outer, ("/job/save.py", "save")) == word
