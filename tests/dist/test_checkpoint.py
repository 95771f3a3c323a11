"""Resume: to the last bit on the same world size, to 1e-4 across strategies and world sizes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from dtk.strategies.zero2 import Zero2Config
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

SAVED, STOPPED, STEPS = 6, 9, 12
TRAIN = replace(config().train, steps=STEPS, micro_batch_size=4)
TP = schema.ParallelConfig(tp=2)
EP = schema.ParallelConfig(ep=2)
MOE = schema.MoEConfig(
    name="probe", vocab_size=256, context_length=64, layers=2, heads=4, kv_heads=4, width=32, experts=4, expert_width=24
)
RING, ULYSSES = (schema.ParallelConfig(cp=2, context=method) for method in ("ring", "ulysses"))
DROPOUT = replace(config().model, dropout=0.1)
HALF = schema.CheckpointConfig(every=SAVED, at_end=False)
CONSTANT = schema.ConstantSchedule(warmup_steps=3)
STRATEGIES = {
    "ddp": DDPConfig(),
    "zero1": Zero1Config(),
    "fsdp": FSDPConfig(),
    "zero2": Zero2Config(),
}


def case(strategy, **more):
    """The learning rate must not depend on the number of steps: the first part has fewer."""
    return {"strategy": STRATEGIES.get(strategy, strategy), "schedule": CONSTANT, "train": TRAIN, **more}


WHOLE = {
    **{name: case(name) for name in STRATEGIES},
    "dropout": case("fsdp", model=DROPOUT),
    "in backward": case(
        "fsdp",
        train=replace(TRAIN, clip_norm=None, micro_batch_size=8),
        optimizer=schema.AdamWConfig(lr=3e-3, in_backward=True),
    ),
    "sgd": case("ddp", optimizer=schema.SGDConfig(lr=0.05)),
    "int8": case(DDPConfig(communication_hook="int8", bucket_cap_mb=0.05)),
    "topk": case(Zero1Config(communication_hook="topk", bucket_cap_mb=0.05)),
    "powersgd": case(DDPConfig(communication_hook="powersgd", powersgd_rank=2, bucket_cap_mb=0.02)),
    "powersgd forgets": case(DDPConfig(communication_hook="powersgd", bucket_cap_mb=0.02, error_feedback=False)),
    "tp": case("ddp", parallel=TP),
    "tp dropout": case("fsdp", parallel=TP, model=DROPOUT),
    "ep": case("fsdp", parallel=EP, model=MOE),
}


SMALL: dict[str, Any] = {"checkpoint": schema.CheckpointConfig(every=2), "train": replace(TRAIN, steps=2)}


def first_part(changes):
    """Stops behind its only checkpoint."""
    return {**changes, "checkpoint": HALF, "train": replace(changes["train"], steps=STOPPED)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Checkpoints of two ranks under every strategy, what they give when resumed, and the uninterrupted curves."""
    folder = str(tmp_path_factory.mktemp("runs"))
    cases = [(name, first_part(changes), None) for name, changes in WHOLE.items()]
    cases += [(f"{name} resumed", changes, name) for name, changes in WHOLE.items()]
    cases += [
        ("ddp to fsdp", case("fsdp"), "ddp"),
        ("fsdp to zero1", case("zero1"), "fsdp"),
        ("zero1 to zero2", case("zero2"), "zero1"),
        ("fsdp to tp", case("fsdp", parallel=TP), "fsdp"),
        ("tp to zero1", case("zero1"), "tp"),
        ("ep to zero1", case("zero1", model=MOE), "ep"),
        ("ep to ddp of ep", case("ddp", model=MOE, parallel=EP), "ep"),
        ("ring", first_part(case("zero1", parallel=RING)), None),
        ("ring to tp", case("fsdp", parallel=TP), "ring"),
        ("fsdp to ulysses", case("ddp", parallel=ULYSSES), "fsdp"),
    ]
    cases += [(f"{name} whole", changes, None) for name, changes in WHOLE.items()]
    return folder, run_ranks("tests.dist.training_ranks:save_and_load", 2, cases, folder)[0]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", WHOLE)
def test_resume_is_exact_on_the_same_world_size(trained, name):
    _, losses = trained
    assert len(losses[f"{name} resumed"]) == STEPS - SAVED
    assert losses[f"{name} resumed"] == losses[f"{name} whole"][SAVED:]


@pytest.mark.parametrize(
    "name",
    [
        *("ddp to fsdp", "fsdp to zero1", "zero1 to zero2", "fsdp to tp", "tp to zero1", "ep to zero1"),
        *("ep to ddp of ep", "ring to tp", "fsdp to ulysses"),
    ],
)
def test_resume_under_another_strategy(trained, name):
    _, losses = trained
    same = losses["ep whole" if name.startswith("ep ") else "ddp whole"]
    assert losses[name] == pytest.approx(same[SAVED:], abs=1e-4)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("world_size", [1, 4])
def test_resume_on_another_world_size(trained, world_size):
    folder, losses = trained
    wide = SingleConfig() if world_size == 1 else HSDPConfig(dp_replicate=2)
    cases = [(f"from {source}", case(wide), source) for source in ("ddp", "zero1", "fsdp", "tp", "ring")]
    experts = {"parallel": EP} if world_size == 4 else {}
    cases.append(("from ep", case(wide, model=MOE, **experts), "ep"))
    if world_size == 4:
        cases.append(("fsdp on tp from tp", case("fsdp", parallel=TP), "tp"))
        cases.append(("zero1 from fsdp", case("zero1"), "fsdp"))
    resumed = run_ranks("tests.dist.training_ranks:save_and_load", world_size, cases, folder)[0]
    for name, curve in resumed.items():
        same = losses["ep whole" if name.endswith(" ep") else "ddp whole"]
        assert curve == pytest.approx(same[SAVED:], abs=1e-4), name


def test_only_the_last_checkpoints_are_kept(trained):
    folder, _ = trained
    names = sorted(path.name for path in (Path(folder) / "ddp" / "checkpoints").iterdir())
    assert names == [f"step_{SAVED:08}"]


@pytest.mark.timeout(60)
def test_keep(tmp_path):
    changes = case("ddp", checkpoint=schema.CheckpointConfig(every=2, keep=2), train=replace(TRAIN, steps=9))
    run_ranks("tests.dist.training_ranks:save_and_load", 2, [("run", changes, None)], str(tmp_path))
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step_00000008", "step_00000009"]


@pytest.mark.timeout(60)
def test_a_checkpoint_of_another_model_is_one_line(tmp_path):
    run_ranks("tests.dist.training_ranks:save_and_load", 1, [("small", SMALL, None)], str(tmp_path))
    for change in ({"layers": 4}, {"width": 64}):
        other = ("other", {"model": replace(config().model, **change)}, "small")
        with pytest.raises(AssertionError, match=r"DtkError: .*is of another model"):
            run_ranks("tests.dist.training_ranks:save_and_load", 1, [other], str(tmp_path))


@pytest.mark.timeout(120)
def test_what_the_ranks_find_damaged_is_one_line(tmp_path):
    """Also where checkpoint.json has no sums to compare with."""
    run_ranks("tests.dist.training_ranks:save_and_load", 2, [("run", SMALL, None)], str(tmp_path))
    folder = tmp_path / "run" / "checkpoints" / "step_00000002"
    files = json.loads((folder / "checkpoint.json").read_text())["files"]
    assert {name: about["size_bytes"] for name, about in files.items()} == {
        path.name: path.stat().st_size for path in folder.iterdir() if path.name != "checkpoint.json"
    }
    for name in ("__1_0.distcp", ".metadata"):
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
        with pytest.raises(AssertionError, match=f"DtkError: the checkpoint {folder} is damaged"):
            run_ranks("tests.dist.training_ranks:save_and_load", 2, [("again", case("ddp"), "run")], str(tmp_path))


@pytest.mark.timeout(60)
def test_a_model_that_is_cut_is_read_back_and_exports_the_weights_of_one_process(tmp_path):
    changes = [case("fsdp", parallel=TP, **SMALL), case("zero1", **SMALL), case(SingleConfig(), **SMALL)]
    for name, change in zip(("tp", "zero1", "single"), changes):
        ranks = 1 if name == "single" else 2
        done = run_ranks("tests.dist.layout_ranks:export_and_read_back", ranks, change, str(tmp_path / name))
        assert all(done), f"{name}: what was read is not what was written"
    exported = [(tmp_path / name / "export" / "model.safetensors").read_bytes() for name in ("tp", "zero1", "single")]
    assert exported[0] == exported[1] == exported[2]
