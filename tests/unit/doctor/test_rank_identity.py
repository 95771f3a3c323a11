"""Whether a launcher started this process, and as which rank."""

import os

import pytest

from dtk.doctor.rank_identity import place
from dtk.errors import DtkError
from dtk.rank.job import started_by

VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    """Sets exactly the variables that are given; os.environ is as before afterwards."""
    for name in [name for name in os.environ if name.startswith("SLURM_")] + list(VARIABLES):
        monkeypatch.delenv(name, raising=False)

    def put(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("values", "several"),
    [
        ({}, False),
        ({"RANK": "0"}, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, True),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, False),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, True),
        ({"SLURM_NTASKS": "8"}, False),
    ],
)
def test_torchrun_and_srun_are_recognised(environment, values, several):
    environment(**values)
    assert (started_by(os.environ) is not None) is several


MET = {"WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_a_rank_of_torchrun(environment):
    environment(**MET, RANK="5", LOCAL_RANK="1", GROUP_RANK="2", TORCHELASTIC_USE_AGENT_STORE="True")
    here = place()
    assert (here.rank, here.local_rank, here.world_size, here.node) == (5, 1, 8, 2)
    assert here.master == ("node0", 29500) and not here.serve


@pytest.mark.parametrize(
    ("rank", "agent", "serve"), [("0", "True", False), ("0", "False", True), ("1", "False", False)]
)
def test_rank_0_serves_the_store_if_the_launcher_does_not(environment, rank, agent, serve):
    environment(**MET, RANK=rank, TORCHELASTIC_USE_AGENT_STORE=agent)
    assert place().serve is serve


@pytest.mark.parametrize("missing", ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_variables_that_are_not_whole_are_one_line(environment, missing):
    environment(**{name: value for name, value in MET.items() if name != missing}, RANK="0")
    with pytest.raises(DtkError, match=missing):
        place()
    environment(**{**MET, missing: "x"}, RANK="0")
    if missing != "MASTER_ADDR":
        with pytest.raises(DtkError, match="unset RANK WORLD_SIZE"):
            place()
