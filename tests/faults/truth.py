"""What each fault is: the cause, the ranks to blame, the line, and how the run must end."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Truth:
    causes: tuple[str, ...]
    """Right answers; the first one is what conf/fault/NAME.yaml promises."""
    ranks: tuple[int, ...]
    """To blame; a tie is all of them."""
    ending: Literal["hung", "failed", "oom", "finished"]
    """State of the run. `hung`: ranks that disagree or wait, and the watch ends them."""
    placed: bool = True
    """Whether the evidence can hold the line; where not, a comment says why."""
    seen: tuple[str, str] | None = None
    """File and text of the line that the evidence shows, where it is none of `dtk/faults`: a setting has its line in
    the file that made it; a rank that stops is seen in what it does next."""
    ci: bool = False
    """One of those that every test run makes."""


TRUTH: dict[str, Truth] = {
    "extra_collective": Truth(("hang.conditional_collective",), (0,), "hung", ci=True),
    "other_operation": Truth(("hang.collective_mismatch",), (1,), "hung"),
    "other_shape": Truth(("hang.signature_mismatch",), (3,), "hung"),
    "other_dtype": Truth(("hang.signature_mismatch",), (2,), "hung"),
    "group_order": Truth(("hang.group_order",), (0, 1), "hung", ci=True),
    "recv_before_send": Truth(("hang.p2p_cycle",), (0, 1), "hung"),
    "branch": Truth(("hang.collective_mismatch",), (0, 1, 2, 3), "hung"),
    "rank0_state_dict": Truth(("hang.conditional_collective",), (0,), "hung", ci=True),
    "rank0_evaluation": Truth(("hang.conditional_collective",), (0,), "hung"),
    "uneven_batches": Truth(("hang.uneven_iterations",), (1,), "hung"),
    "early_stop": Truth(
        ("hang.uneven_iterations",),
        (1,),
        "hung",
        ci=True,
        seen=("dtk/train/assemble.py", "list_over_ranks(loop.context"),
    ),
    "swallowed_exception": Truth(("hang.rank_raised",), (2,), "hung"),
    "exception": Truth(("hang.rank_raised",), (1,), "failed", ci=True),
    "sigkill": Truth(("hang.rank_killed",), (1,), "failed", ci=True),
    "out_of_memory": Truth(("memory.host",), (1,), "oom"),
    "data_loader_stuck": Truth(("hang.host_stall",), (1,), "hung"),
    "straggler": Truth(("hang.straggler", "overlap.skew"), (1,), "finished"),
    "accumulation_boundary": Truth(("hang.uneven_iterations",), (2,), "hung"),
    "unused_parameters": Truth(("hang.unused_parameters",), (1,), "failed"),
    # A figure has no line: the operation that overflowed leaves one only in anomaly mode, which costs multiples.
    "nan_on_one_rank": Truth(("numeric.non_finite",), (1,), "finished", placed=False, ci=True),
    "full_gather": Truth(("memory.full_gather",), (0, 1), "finished", ci=True),
    "gathered_logits": Truth(("memory.replicated_gather",), (0, 1, 2, 3), "finished"),
    "no_reshard": Truth(
        ("memory.no_reshard",), (0, 1), "finished", seen=("conf/fault/no_reshard.yaml", "reshard_after_forward: false")
    ),
    "root_only_wrapping": Truth(
        ("memory.full_gather", "overlap.root_only_wrapping"),
        (0, 1),
        "finished",
        seen=("conf/fault/root_only_wrapping.yaml", "blocks_per_unit: 0"),
    ),
    "leak": Truth(("memory.leak",), (0, 1), "finished"),
    # What is wrong is a line that is missing: `no_sync`.
    "sync_every_micro_batch": Truth(("overlap.accumulation_sync",), (0, 1), "finished", placed=False),
    "tiny_buckets": Truth(
        ("overlap.small_buckets",), (0, 1), "finished", seen=("conf/fault/tiny_buckets.yaml", "bucket_cap_mb: 0.01")
    ),
    "one_bucket": Truth(
        ("overlap.single_bucket",), (0, 1), "finished", seen=("conf/fault/one_bucket.yaml", "bucket_cap_mb: 1000.0")
    ),
    "per_parameter_all_reduce": Truth(("overlap.unbucketed",), (0, 1), "finished"),
    # Where a pipeline sends is dtk's own line, whatever its stages disagree about.
    "pipeline_mismatch": Truth(("hang.pipeline_mismatch",), (1,), "hung", placed=False, ci=True),
    "all_to_all_splits": Truth(("hang.all_to_all_splits",), (1,), "failed"),
    # What is wrong is no call: samples, the choices of a router, a setting.
    "tp_divergence": Truth(("numeric.tp_divergence",), (0, 1), "finished", placed=False, ci=True),
    "expert_imbalance": Truth(("overlap.expert_imbalance",), (0,), "finished", placed=False),
    "pipeline_bubble": Truth(("overlap.pipeline_bubble",), (0, 1), "finished", placed=False),
    "pipeline_imbalance": Truth(("overlap.pipeline_imbalance",), (0,), "finished", placed=False),
    "tp_across_nodes": Truth(("overlap.tp_across_nodes",), (0, 1, 2, 3), "finished", placed=False),
    "nccl_typo": Truth(
        ("env.unknown_variable",),
        (),
        "finished",
        ci=True,
        seen=("conf/fault/nccl_typo.yaml", "NCCL_SOCKET_IFNAM: eth0"),
    ),
}


def place(fault: str) -> tuple[str, int] | None:
    """File (relative to the repository) and line that the diagnosis must name; None where the evidence holds none."""
    truth = TRUTH[fault]
    if truth.seen is None:
        return marker(fault) if truth.placed else None
    file, text = truth.seen
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if text in line]
    assert len(numbers) == 1, (fault, numbers)
    return file, numbers[0]


def marker(fault: str) -> tuple[str, int]:
    """File (relative to the repository) and line that end in the comment `fault: NAME`."""
    rows = [
        (str(path.relative_to(ROOT)), number)
        for path in sorted((ROOT / "dtk" / "faults").glob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.endswith(f"# fault: {fault}")
    ]
    assert len(rows) == 1, (fault, rows)
    return rows[0]
