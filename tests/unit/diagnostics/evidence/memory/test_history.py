"""The allocator's history: levels from the state at the end; what a block is for, by its frames."""

import pytest

from diagnostics.evidence.memory import levels
from diagnostics.evidence.memory.history import BACKWARD, MAX_FRAMES, REDUCED, owner, read
from diagnostics.evidence.memory.levels import ACTIVATIONS, AT, BUFFERS, GRADIENTS, OPTIMIZER, RESERVED, UNKNOWN, total

SITE = "/lib/python3.12/site-packages/torch"
FORWARD = [{"filename": f"{SITE}/nn/modules/module.py", "name": "_call_impl"}]
ENGINE = [{"filename": f"{SITE}/autograd/graph.py", "name": "_engine_run_backward"}]
STATES = [{"filename": f"{SITE}/optim/adamw.py", "name": "_init_group"}]
REDUCE = [{"filename": f"{SITE}/distributed/fsdp/_collectives.py", "name": "foreach_reduce"}]


def events(*steps):
    """(action, address, size, frames), one each microsecond."""
    return [
        {"action": action, "addr": address, "size": size, "frames": frames, "time_us": n}
        for n, (action, address, size, frames) in enumerate(steps, 1)
    ]


def at_peak(history, word):
    return history.peak[1][AT[word]]


def test_what_is_freed_again_was_alive_in_between():
    result = events(("alloc", 1, 100, FORWARD), ("alloc", 2, 50, FORWARD), ("free_completed", 1, 100, []))
    history = read(result, {2: (50, ACTIVATIONS)}, 0)
    assert total(history.peak) == 150
    assert at_peak(history, ACTIVATIONS) == 150
    assert history.peak_event["addr"] == 2
    assert total(history.rows[-1]) == 50


def test_a_gradient_lives_on_into_the_optimizers_step():
    kept = events(("alloc", 1, 100, ENGINE), ("alloc", 2, 10, ENGINE), ("free_completed", 2, 10, []),
                  ("alloc", 3, 5, STATES), ("free_completed", 1, 100, []))  # fmt: skip
    history = read(kept, {3: (5, OPTIMIZER)}, 0)
    assert (at_peak(history, GRADIENTS), at_peak(history, ACTIVATIONS)) == (100, 10)


def test_what_the_reduction_makes_and_frees_at_once_is_a_buffer():
    result = events(("alloc", 1, 100, REDUCE), ("free_completed", 1, 100, []), ("alloc", 2, 5, STATES))
    assert at_peak(read(result, {2: (5, OPTIMIZER)}, 0), BUFFERS) == 100


def test_blocks_older_than_the_history_are_in_it_from_the_start():
    history = read(events(("alloc", 2, 50, FORWARD)), {1: (400, BACKWARD), 2: (50, ACTIVATIONS)}, 0)
    assert total(history.rows[0]) == 400
    assert history.rows[0][1][AT[UNKNOWN]] == 400, "whether the optimizer came behind it is not known"
    with_step = events(("alloc", 2, 50, STATES))
    assert read(with_step, {1: (400, BACKWARD), 2: (50, OPTIMIZER)}, 0).rows[0][1][AT[GRADIENTS]] == 400


def test_what_was_freed_without_being_made_is_known_by_its_size():
    history = read(events(("free_completed", 1, 70, []), ("alloc", 2, 5, FORWARD)), {2: (5, ACTIVATIONS)}, 0)
    assert total(history.peak) == 70
    assert history.peak_event is None, "the peak was before the first event"


def test_segments_are_reserved_and_given_back():
    result = events(("segment_alloc", 9, 1000, []), ("alloc", 1, 300, FORWARD), ("segment_free", 8, 200, []))
    history = read(result, {1: (300, ACTIVATIONS)}, 1000)
    assert list(dict.fromkeys(row[1][AT[RESERVED]] for row in history.rows)) == [200, 1200, 900, 700]


def test_the_first_request_that_could_not_be_met():
    result = events(("alloc", 1, 5, FORWARD), ("oom", 0, 700, []), ("oom", 0, 900, []))
    assert read(result, {1: (5, ACTIVATIONS)}, 0).failed == (pytest.approx(1e-6), 700)


def test_steps_and_the_region_in_which_the_peak_was():
    result = events(("alloc", 1, 5, FORWARD), ("alloc", 2, 5, FORWARD), ("free_completed", 1, 5, []))
    marks = [(1, True, "ProfilerStep#7"), (2, True, "forward"), (2, True, "block"), (2, False, "block"),
             (3, False, "forward"), (3, False, "ProfilerStep#7")]  # fmt: skip
    history = read(result, {2: (5, ACTIVATIONS)}, 0, marks)
    assert (history.peak_step, history.peak_region) == (7, "forward")
    assert history.steps == [(0.0, 7)]


def test_without_times_the_order_stands_for_them():
    result = events(("alloc", 1, 5, FORWARD), ("alloc", 2, 5, FORWARD))
    del result[1]["time_us"]
    history = read(result, {1: (5, ACTIVATIONS), 2: (5, ACTIVATIONS)}, 0, [(1, True, "ProfilerStep#7")])
    assert not history.has_times
    assert (history.rows[-1][0], history.steps, history.peak_step) == (1.0, [], None)


def test_either_kind_of_release_may_be_left_out():
    requested = events(("alloc", 1, 100, FORWARD), ("free_requested", 1, 100, []), ("free_completed", 1, 100, []))
    assert total(read(requested, {}, 0).rows[-1]) == 0
    assert total(read([*requested[:1], *requested[2:]], {}, 0).rows[-1]) == 0


def test_history_and_blocks_that_contradict_each_other():
    """More was freed than blocks can have held: the blocks are right, and nothing falls below zero."""
    history = read(events(("alloc", 1, 900, FORWARD)), {2: (100, ACTIVATIONS)}, 0)
    assert all(min(row[1]) >= 0 for row in history.rows)


def test_damaged_events_and_none_at_all():
    assert read([], {}, 0).peak is None
    broken = [
        {"action": "alloc", "addr": "x", "size": 5, "time_us": 1},
        {"action": "alloc", "addr": 1, "size": -5, "time_us": 2},
    ]
    assert total(read(broken, {}, 0).peak) == 0


def of(*frames, **event):
    return owner({"frames": [{"filename": file, "name": name, "line": 1} for file, name in frames], **event})


@pytest.mark.parametrize(
    ("file", "name", "word"),
    [
        (f"{SITE}/optim/adamw.py", "_init_group", levels.OPTIMIZER),
        (f"{SITE}/optim/adamw.py", "step", levels.TEMPORARIES),
        (f"{SITE}/nn/modules/module.py", "_call_impl", levels.ACTIVATIONS),
        (f"{SITE}/nn/modules/module.py", "_apply", levels.PARAMETERS),
        (f"{SITE}/nn/modules/linear.py", "__init__", levels.PARAMETERS),
        (f"{SITE}/nn/parameter.py", "__new__", levels.PARAMETERS),
        (f"{SITE}/distributed/fsdp/_flat_param.py", "_init_flat_param_and_metadata", levels.PARAMETERS),
        (f"{SITE}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather", levels.BUFFERS),
        (f"{SITE}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce", REDUCED),
        (f"{SITE}/distributed/distributed_c10d.py", "all_reduce", levels.BUFFERS),
        (f"{SITE}/nn/parallel/distributed.py", "_ddp_init_helper", levels.BUFFERS),
        (f"{SITE}/autograd/graph.py", "_engine_run_backward", BACKWARD),
        (f"{SITE}/autograd/__init__.py", "_make_grads", BACKWARD),
        ("/build/engine.cpp", "torch::autograd::Engine::evaluate_function(...)", BACKWARD),
        ("C:\\py\\torch\\optim\\sgd.py", "step", levels.TEMPORARIES),
        ("/home/me/train.py", "step", levels.UNKNOWN),
        (f"{SITE}/_tensor.py", "backward", levels.UNKNOWN),
        ("/home/me/optim/adamw.py", "_init_group", levels.UNKNOWN),
    ],
)
def test_torchs_own_files_tell(file, name, word):
    assert of((file, name)) == word


def test_the_innermost_frame_that_says_anything_counts():
    module, optimizer = f"{SITE}/nn/modules/module.py", f"{SITE}/optim/adamw.py"
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
    assert of(*silent, (f"{SITE}/optim/adamw.py", "step")) == levels.UNKNOWN


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
    outer = [(f"{SITE}/distributed/checkpoint/state_dict.py", name) for name in names]
    innermost = (f"{SITE}/distributed/_functional_collectives.py", "all_gather_tensor")
    assert of(innermost, *outer, ("/job/save.py", "save")) == word
