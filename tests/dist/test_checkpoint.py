"""Resume: to the last bit on the same world size, to 1e-4 across strategies and world sizes."""

from dataclasses import replace

import pytest

from dtk.config import schema
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

TRAIN = config().train
DROPOUT = replace(config().model, dropout=0.1)
HALF = schema.CheckpointConfig(every=10, at_end=False)
STRATEGIES = {
    "ddp": schema.DDPConfig(),
    "zero1": schema.Zero1Config(),
    "fsdp": schema.FSDPConfig(),
    "zero2": schema.FSDPConfig(name="zero2", reshard_after_forward=False),
}


@pytest.mark.timeout(240)
def test_resume(tmp_path):
    cases = []
    for name, strategy in STRATEGIES.items():
        changes = {"strategy": strategy, "checkpoint": HALF, "train": replace(TRAIN, steps=20)}
        cases.append((name, changes, None))
        cases.append((f"{name} resumed", {"strategy": strategy, "train": TRAIN}, name))
    cases.append(("ddp to fsdp", {"strategy": STRATEGIES["fsdp"]}, "ddp"))
    cases.append(("fsdp to zero1", {"strategy": STRATEGIES["zero1"]}, "fsdp"))
    cases.append(("zero1 to zero2", {"strategy": STRATEGIES["zero2"]}, "zero1"))
    dropout = {"strategy": STRATEGIES["fsdp"], "model": DROPOUT, "checkpoint": HALF}
    cases.append(("dropout", dropout, None))
    cases.append(("dropout resumed", {**dropout, "checkpoint": config().checkpoint}, "dropout"))
    sgd = {"strategy": STRATEGIES["ddp"], "optimizer": schema.SGDConfig(lr=0.05), "checkpoint": HALF}
    cases.append(("sgd", sgd, None))
    cases.append(("sgd resumed", {**sgd, "checkpoint": config().checkpoint}, "sgd"))
    # The checkpoint of step 20 must not be there: the newest complete one is resumed.
    for _, changes, source in cases:
        if source is None:
            changes["train"] = replace(TRAIN, steps=15)
    whole = {name: {**changes, "train": TRAIN} for name, changes, source in cases if source is None}
    two = run_ranks("tests.dist.training_ranks:save_and_load", 2, cases, str(tmp_path))[0]
    uninterrupted = run_ranks("tests.dist.training_ranks:train_all", 2, without_saving(whole), str(tmp_path / "w"))[0]
    for name in [*STRATEGIES, "dropout", "sgd"]:
        schedule_free = uninterrupted[name][10:]
        assert two[f"{name} resumed"] == schedule_free, f"{name}: not to the last bit"
    for name in ("ddp to fsdp", "fsdp to zero1", "zero1 to zero2"):
        assert two[name] == pytest.approx(uninterrupted["ddp"][10:], abs=1e-4), name

    four = [
        ("4 from ddp", {"strategy": STRATEGIES["fsdp"]}, "ddp"),
        ("4 from zero1", {"strategy": STRATEGIES["zero1"]}, "zero1"),
        ("4 from fsdp", {"strategy": schema.HSDPConfig(dp_replicate=2)}, "fsdp"),
    ]
    for name, losses in run_ranks("tests.dist.training_ranks:save_and_load", 4, four, str(tmp_path))[0].items():
        assert losses == pytest.approx(uninterrupted["ddp"][10:], abs=1e-4), name
    one = [("1 from fsdp", {}, "fsdp"), ("1 from zero1", {}, "zero1")]
    for name, losses in run_ranks("tests.dist.training_ranks:save_and_load", 1, one, str(tmp_path))[0].items():
        assert losses == pytest.approx(uninterrupted["ddp"][10:], abs=1e-4), name


def without_saving(cases):
    return {name: {**changes, "checkpoint": config().checkpoint} for name, changes in cases.items()}


@pytest.mark.timeout(60)
def test_a_checkpoint_of_another_model_is_one_line(tmp_path):
    small = {"checkpoint": schema.CheckpointConfig(every=2), "train": replace(TRAIN, steps=2)}
    deeper = {"model": replace(config().model, layers=4)}
    cases = [("small", small, None), ("deeper", deeper, "small")]
    with pytest.raises(AssertionError, match="is of another model"):
        run_ranks("tests.dist.training_ranks:save_and_load", 1, cases, str(tmp_path))
