"""Identity of this process among the ranks, if a launcher started it as one of several."""

import os
from dataclasses import dataclass

from dtk.errors import DtkError


@dataclass(frozen=True, slots=True)
class Place:
    """The identity of this rank."""

    rank: int
    local_rank: int
    world_size: int
    node: int
    master: tuple[str, int]
    serve: bool
    """Whether rank 0 serves the store itself, as the launcher does not."""


def place() -> Place:
    """Return this rank's place by the variables of torchrun or Slurm; DtkError if they are incomplete."""
    try:
        if "RANK" not in os.environ:
            from dtk.launch.cluster import adopt_slurm

            os.environ.update(adopt_slurm(os.environ))
        rank, agent = int(os.environ["RANK"]), os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Place(
            rank=rank,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            world_size=int(os.environ["WORLD_SIZE"]),
            node=int(os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", "0"))),
            master=(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
            serve=rank == 0 and not agent,
        )
    except (KeyError, ValueError) as error:
        what = "RANK and WORLD_SIZE say that a launcher started this process"
        fix = "unset RANK WORLD_SIZE, or torchrun --nnodes=N --rdzv-endpoint=HOST:PORT -m dtk doctor"
        raise DtkError(what, f"its other variables are not complete ({error})", fix) from error
