"""States in files: the losses of states in memory, bit for bit; in checkpoints, also of a run that is killed."""

import tempfile
from dataclasses import replace

import pytest

from dtk.config import schema
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.zero1 import Zero1Config
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

FOLDER = tempfile.gettempdir()
NVME = {"offload_to": "nvme", "offload_folder": FOLDER}
TRAIN = replace(config().train, steps=6, micro_batch_size=4)
IN_BACKWARD = {
    "train": replace(TRAIN, clip_norm=None, micro_batch_size=8),
    "optimizer": schema.AdamWConfig(lr=3e-3, in_backward=True),
}
CASES = {
    "zero1": {"strategy": Zero1Config()},
    "fsdp": {"strategy": FSDPConfig()},
    "in backward": {"strategy": FSDPConfig(), **IN_BACKWARD},
    "zero1 in files": {"strategy": Zero1Config(offload="optimizer", **NVME)},
    "fsdp in files": {"strategy": FSDPConfig(offload="parameters", **NVME)},
    "in backward in files": {"strategy": FSDPConfig(offload="parameters", **NVME), **IN_BACKWARD},
}
IN_FILES = ("zero1 in files", "fsdp in files")


def case(name):
    """The learning rate must not depend on the number of steps: the first part has fewer."""
    return {"train": TRAIN, "schedule": schema.ConstantSchedule(), **CASES[name]}


def first_part(name):
    """Ends after step 4 and leaves the checkpoint of step 3."""
    changes = case(name)
    steps = {"train": replace(changes["train"], steps=4), "checkpoint": schema.CheckpointConfig(every=3, at_end=False)}
    return {**changes, **steps}


@pytest.mark.timeout(240)
def test_states_in_files_change_no_bit_and_resume_exactly_with_and_without_files(tmp_path):
    cases = [(name, case(name), None) for name in CASES]
    for name in IN_FILES:
        part, plain = f"{name}, part", name.removesuffix(" in files")
        cases += [(part, first_part(name), None), (f"{name} resumed", case(name), part)]
        cases += [(f"{name} without", case(plain), part)]
    cases += [("plain, part", first_part("zero1"), None), ("to files", case("fsdp in files"), "plain, part")]
    losses = run_ranks("tests.dist.training_ranks:save_and_load", 2, cases, str(tmp_path))[0]
    assert losses["in backward in files"] == losses["in backward"]
    for name in IN_FILES:
        plain = name.removesuffix(" in files")
        assert losses[name] == losses[plain]
        assert losses[f"{name} resumed"] == losses[f"{name} without"] == losses[plain][3:]
    assert losses["to files"] == pytest.approx(losses["zero1"][3:], abs=1e-5)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("before", ["step", "update", "checkpoint"])
def test_a_disk_that_loses_parameters_is_one_line_and_no_signal(before, tmp_path):
    job = config(**case("fsdp in files"))
    said = run_ranks("tests.dist.tier_ranks:lose_the_disk", 2, job, str(tmp_path), before)
    text = said[:1] if before == "checkpoint" else said  # Rank 0 reports a failed write.
    assert all(f"strategy.offload_folder={FOLDER} can no longer be read or written" in line for line in text)
