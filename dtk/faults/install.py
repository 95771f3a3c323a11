"""From the name in the configuration to the loop that goes wrong."""

import dataclasses

from dtk.faults import desync, gradients, iterations, ranks, sharded
from dtk.faults.base import FaultyLoop
from dtk.train.loop import Loop

FAULTS: dict[str, type[FaultyLoop]] = {
    "extra_collective": desync.ExtraCollective,
    "other_operation": desync.OtherOperation,
    "other_shape": desync.OtherShape,
    "other_dtype": desync.OtherDtype,
    "group_order": desync.GroupOrder,
    "recv_before_send": desync.RecvBeforeSend,
    "branch": desync.Branch,
    "rank0_state_dict": sharded.Rank0StateDict,
    "rank0_evaluation": sharded.Rank0Evaluation,
    "full_gather": sharded.FullGather,
    "gathered_logits": sharded.GatheredLogits,
    "uneven_batches": iterations.UnevenBatches,
    "early_stop": iterations.EarlyStop,
    "accumulation_boundary": iterations.AccumulationBoundary,
    "exception": ranks.Raises,
    "swallowed_exception": ranks.Swallowed,
    "sigkill": ranks.Killed,
    "out_of_memory": ranks.OutOfMemory,
    "data_loader_stuck": ranks.LoaderStuck,
    "straggler": ranks.Straggler,
    "nan_on_one_rank": ranks.NotANumber,
    "unused_parameters": gradients.UnusedParameters,
    "sync_every_micro_batch": gradients.SyncEveryMicroBatch,
    "per_parameter_all_reduce": gradients.PerParameterAllReduce,
    "leak": gradients.Leak,
}
"""The faults that are code; those that are settings are complete in their YAML file."""


def install(loop: Loop) -> Loop:
    """Return the loop with its configured fault built in, or the same loop if the fault consists of settings."""
    faulty = FAULTS.get(loop.config.fault.name)
    if faulty is None:
        return loop
    return faulty(**{field.name: getattr(loop, field.name) for field in dataclasses.fields(loop)})
