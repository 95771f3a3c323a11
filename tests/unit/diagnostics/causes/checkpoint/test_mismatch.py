"""Checkpoints that do not fit what they are loaded into."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose

HEAD = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 9, in <module>\n'
IN_MODEL = "RuntimeError: Error(s) in loading state_dict for Net:\n"
SIZE = (
    "\tsize mismatch for emb.weight: copying a param with shape torch.Size([32000, 64]) from checkpoint, the shape in "
    "current model is torch.Size([32016, 64])."
)


def log(error: str) -> str:
    return HEAD + "".join(f"[rank1]: {line}\n" for line in error.splitlines())


def keys(missing: str, unexpected: str) -> str:
    return (
        f'{IN_MODEL}\tMissing key(s) in state_dict: "{missing}". \n\tUnexpected key(s) in state_dict: "{unexpected}". '
    )


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (keys("fc.weight", "module.fc.weight"), "The checkpoint's keys begin with 'module.'"),
        (keys("_orig_mod.fc.weight", "fc.weight"), "The model's keys begin with '_orig_mod.'"),
        (keys("fc.weight", "head.bias"), "1 key is missing; 1 key is unexpected"),
        (IN_MODEL + SIZE, "emb.weight has [32000, 64] in the checkpoint and [32016, 64] in the model"),
        ("RuntimeError: Missing key in checkpoint state_dict: model.2.weight.", "model.2.weight"),
        ("ValueError: loaded state dict contains a parameter group that doesn't match the size of ...", "group"),
        (
            "ZeRORuntimeError: The checkpoint being loaded used a DP world size of 8 but the current world size is 4.",
            "world size of 8",
        ),
        ("AssertionError: num_layers value from checkpoint (24) is not equal to the input argument value (12).", "24"),
    ],
)
def test_the_loader_says_what_differs(tmp_path: Path, error: str, word: str) -> None:
    (tmp_path / "train.log").write_text(log(error))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks, root.where[0].line) == ("checkpoint.mismatch", (1,), 9)
    assert word in text_of(root).summary


@pytest.mark.parametrize(
    ("function", "error", "cause"),
    [
        ("Sharded.load_state_dict", "RuntimeError: got 4 states for 2 groups", "checkpoint.mismatch"),
        ("load_state_dict", "KeyError: 'param_groups'", "checkpoint.mismatch"),
        ("load_state_dict", "RuntimeError: CUDA error: an illegal memory access was encountered", "hang.rank_raised"),
        ("load_state_dict", "FileNotFoundError: no such file: 'step_40.pt'", "hang.rank_raised"),
        ("set_up", "RuntimeError: got 4 states for 2 groups", "hang.rank_raised"),
    ],
)
def test_what_an_objects_load_state_dict_raises_itself(tmp_path: Path, function: str, error: str, cause: str) -> None:
    frame = f'[rank1]:   File "/site-packages/lib/optimizer.py", line 40, in {function}\n'
    (tmp_path / "train.log").write_text(f"{HEAD}{frame}[rank1]: {error}\n")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == (cause, (1,))
    if cause == "checkpoint.mismatch":
        assert error in text_of(root).summary and "optimizer.py" not in text_of(root).summary


@pytest.mark.parametrize(
    ("inside", "cause"),
    [
        ("/site-packages/torch/optim/optimizer.py", "checkpoint.mismatch"),
        ("/job/own.py", "hang.rank_raised"),  # What a user's own code calls is not the loader's.
    ],
)
def test_what_fails_below_a_loader(tmp_path: Path, inside: str, cause: str) -> None:
    places = (
        ("torch/optim/optimizer.py", "load_state_dict"),
        (inside, "restore"),
        ("torch/optim/adam.py", "__setstate__"),
    )
    frames = "".join(f'[rank1]:   File "/site-packages/{file}", line 4, in {name}\n' for file, name in places)
    frames = frames.replace("/site-packages//", "/")
    (tmp_path / "train.log").write_text(f"{HEAD}{frames}[rank1]: KeyError: 'step'\n")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == (cause, (1,))


def test_what_torch_distributed_checkpoint_nests_in_its_exception_counts(tmp_path: Path) -> None:
    error = (
        "CheckpointException: CheckpointException ranks:dict_keys([1])\nTraceback (most recent call last): (RANK 1)\n"
    )
    inner = '  File "planner.py", line 2, in f\nRuntimeError: Missing key in checkpoint state_dict: model.2.weight.'
    (tmp_path / "train.log").write_text(log(error + inner))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["checkpoint.mismatch"]


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: The size of tensor a (512) must match the size of tensor b (511) at non-singleton dimension 1",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ],
)
def test_other_errors_are_the_ranks_own(tmp_path: Path, error: str) -> None:
    (tmp_path / "train.log").write_text(log(error))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.rank_raised"]


def test_what_the_program_caught_does_not_count(tmp_path: Path) -> None:
    steps = "".join(f"[rank1]: step {n} loss {2 - n / 100}\n" for n in range(20))
    (tmp_path / "train.log").write_text(log(IN_MODEL + SIZE) + steps)
    assert not diagnose(tmp_path).root_causes


def test_a_list_that_begins_in_its_middle(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"[rank2]: {SIZE}\n[rank2]: {SIZE.replace('emb', 'head')}\n")
    (cause,) = diagnose(tmp_path).root_causes
    assert (cause.cause, cause.ranks, len(cause.evidence)) == ("checkpoint.mismatch", (2,), 2)


def test_the_rank_that_a_checkpoint_s_exception_names(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        '  File "/venv/torch/distributed/checkpoint/utils.py", line 192, in reduce_scatter\n    raise result\n'
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3])\n"
        "Traceback (most recent call last): (RANK 3)\n"
        '  File "/venv/torch/distributed/checkpoint/default_planner.py", line 316, in create_default_local_load_plan\n'
        '    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")\n'
        "RuntimeError: Missing key in checkpoint state_dict: head.bias.\n"
    )
    (cause,) = diagnose(tmp_path).root_causes
    assert (cause.cause, cause.ranks) == ("checkpoint.mismatch", (3,))
    assert all("{fqn}" not in item.detail for item in cause.evidence)


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("torch/distributed/_shard/checkpoint/default_planner.py", "checkpoint.mismatch"),
        ("torch/distributed/checkpoint/planner_helpers.py", "checkpoint.mismatch"),
        ("torch/distributed/checkpoint/filesystem.py", "hang.rank_raised"),
        ("torch/utils/data/dataset.py", "hang.rank_raised"),
    ],
)
def test_a_key_that_the_planner_does_not_find_in_the_metadata(tmp_path: Path, file: str, cause: str) -> None:
    (tmp_path / "job.log").write_text(
        "Traceback (most recent call last): (RANK 3)\n"
        f'  File "/venv/lib/{file}", line 131, in create\n    md = metadata.state_dict_metadata[fqn]\n'
        "KeyError: 'pos_embedding'\n"
    )
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == (cause, (3,)) and "'pos_embedding'" in text_of(root).summary


@pytest.mark.parametrize(
    ("before", "behind", "causes"),
    [
        ("", "", ["checkpoint.mismatch"]),
        ("2026-01-01 10:00:00,123 ERROR train: cannot resume: ", "", ["checkpoint.mismatch"]),
        ("E       RuntimeError: ", "", ["checkpoint.mismatch"]),
        ("WARNING: cannot resume, training from scratch: ", "", []),
        ("ERROR: cannot resume: ", "".join(f"step {n} loss {2 - n / 100}\n" for n in range(20)), []),
        ("        raise RuntimeError('", "", []),
    ],
)
def test_the_words_without_an_exception_s_line(tmp_path: Path, before: str, behind: str, causes: list[str]) -> None:
    words = IN_MODEL.removeprefix("RuntimeError: ") + '\tMissing key(s) in state_dict: "a.weight".\n'
    (tmp_path / "job.log").write_text(before + words + behind)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == causes


DCP, MEGATRON = "torch/distributed/checkpoint", "megatron/core/dist_checkpointing"


@pytest.mark.parametrize(
    ("place", "error", "cause"),
    [
        (
            f"{DCP}/filesystem.py:read_data",
            "AssertionError: req MetadataIndex(fqn='a.weight', offset=torch.Size([0]), index=0) mismatch sizes "
            "torch.Size([8]) vs torch.Size([8, 4])",
            "checkpoint.mismatch",
        ),
        (
            f"{DCP}/filesystem.py:read_data",
            "RuntimeError: The size of tensor a (8) must match the size of tensor b (9) at non-singleton dimension 0",
            "checkpoint.mismatch",
        ),
        (
            f"{DCP}/utils.py:find_state_dict_object",
            "ValueError: Could not find FQN: 'head.bias'",
            "checkpoint.mismatch",
        ),
        (f"{DCP}/state_dict.py:_load_model_state_dict", "RuntimeError: Missing key: head.bias.", "checkpoint.mismatch"),
        (f"{DCP}/state_dict.py:_split_optim_state_dict", "KeyError: 'head.bias'", "checkpoint.mismatch"),
        (
            f"{DCP}/planner_helpers.py:create_read_items",
            "ValueError: Invalid checkpoint metadata for step, expected BytesStorageMetadata but found "
            "<class 'torch.distributed.checkpoint.metadata.TensorStorageMetadata'>",
            "checkpoint.mismatch",
        ),
        (
            f"{MEGATRON}/strategies/torch.py:_validate_global_shapes",
            "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded "
            "(torch.Size([64, 8])) and expected ((72, 8)) tensor for key module.embed.weight",
            "checkpoint.mismatch",
        ),
        (
            f"{MEGATRON}/strategies/torch.py:_validate_global_shapes",
            "KeyError: \"module.head.weight from model not in state dict: ['module.embed.weight']\"",
            "checkpoint.mismatch",
        ),
        (f"{MEGATRON}/validation.py:<listcomp>", "AssertionError: keys do not match: 4, 5", "checkpoint.mismatch"),
        (f"{DCP}/filesystem.py:read_metadata", "FileNotFoundError: No such file: '/ck/.metadata'", "hang.rank_raised"),
        (f"{DCP}/filesystem.py:read_data", "OSError: file is missing its footer", "hang.rank_raised"),
        (f"{DCP}/default_planner.py:create_global_plan", "ValueError: key mismatch in the plan", "hang.rank_raised"),
        (f"{DCP}/filesystem.py:write_data", "AssertionError: unexpected dtype", "hang.rank_raised"),
        ("job/data.py:read_data", "AssertionError: sizes mismatch: 3 vs 4", "hang.rank_raised"),
    ],
)
def test_what_the_libraries_of_distributed_checkpoints_compare(
    tmp_path: Path, place: str, error: str, cause: str
) -> None:
    file, _, function = place.partition(":")
    frame = f'[rank1]:   File "/venv/lib/{file}", line 40, in {function}\n'
    (tmp_path / "train.log").write_text(f"{HEAD}{frame}[rank1]: {error}\n")
    assert [(root.cause, root.ranks) for root in diagnose(tmp_path).root_causes] == [(cause, (1,))]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            "AssertionError: req MetadataIndex(fqn='w', offset=None, index=None) mismatch sizes, [8] vs [9]",
            "checkpoint.mismatch",
        ),
        ("CheckpointingException: Invalid access pattern: 24 ShardedObject are missing.", "checkpoint.mismatch"),
        ("RuntimeError: An unexpected key, head.bias, exists. FQN is head.weight", "checkpoint.mismatch"),
        ("AssertionError: request 7 has mismatch sizes 8 vs 9", "hang.rank_raised"),
    ],
)
def test_their_words_where_no_frame_was_pasted(tmp_path: Path, error: str, cause: str) -> None:
    (tmp_path / "train.log").write_text(f"{error}\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [cause]


LOGGED = "Could not load: Error(s) in loading state_dict for GPT:\n\tsize mismatch for lm_head.weight\nfrom scratch\n"
RAISED = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in {}\n    f()\n{}\n'


@pytest.mark.parametrize(
    ("where", "error", "is_mismatch"),
    [
        ("main", "KeyError: 'labels'", False),
        ("load_model", "RuntimeError: no model", True),
        ("main", "torch.distributed.DistBackendError: NCCL error: remote process exited", True),
    ],
)
def test_a_traceback_from_elsewhere_shows_that_a_logged_mismatch_was_survived(
    tmp_path: Path, where: str, error: str, is_mismatch: bool
) -> None:
    (tmp_path / "job.log").write_text(LOGGED + RAISED.format(where, error))
    causes = [root.cause for root in diagnose(tmp_path).root_causes]
    assert ("checkpoint.mismatch" in causes) == is_mismatch
