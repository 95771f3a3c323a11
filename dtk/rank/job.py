"""Place and output folder of one rank, read from the environment variables that every launcher sets."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEVICE, BACKEND, ATTEMPT = "DTK_DEVICE", "DTK_BACKEND", "DTK_ATTEMPT"
"""Variables through which dtk's own launcher passes its decisions to the ranks."""
CONFIG = "DTK_SECRET_CONFIG"  # The configuration as JSON if it contains secrets, which are masked in the run folder.


@dataclass(frozen=True, slots=True)
class Job:
    """One rank's part of the job."""

    run_folder: Path
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    device: str
    """`cpu` or `cuda`."""
    backend: str
    """`gloo` or `nccl`."""
    attempt: int
    """0 for the first start in this run folder; resumes and restarts increase it."""
    own_launcher: bool
    """Whether dtk started this rank, and therefore writes the run's final status."""

    @classmethod
    def from_environment(
        cls, run_folder: Path, device: str, backend: str, first_attempt: int, own_launcher: bool
    ) -> "Job":
        """Return the job of this rank from torchrun's variables; Slurm sets no restart count."""
        rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        node_rank = int(os.environ.get("GROUP_RANK", "0"))
        attempt = first_attempt + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return cls(run_folder, rank, local_rank, node_rank, world_size, device, backend, attempt, own_launcher)


def started_by(environment: Mapping[str, str]) -> str | None:
    """Return `torchrun` or `slurm` if it started this process as a rank, else None."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return "torchrun"
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        return "slurm"
    return None
