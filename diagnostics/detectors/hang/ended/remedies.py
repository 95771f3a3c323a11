"""What mends ends of ranks whose words name more than the place: workers of the data loader, memory that torch does not
hand out, split sizes. Decides no cause.
"""

from diagnostics.contract.findings import Remedy
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.endings import Ending


def special(context: Context, at: str, end: Ending) -> tuple[Remedy, ...]:
    """The remedies for an end that is known by its words; none for others.

    Args:
        context: of the job.
        at: file and line, in words.
        end: of the first rank to blame.
    """
    if end.detail == "data_loader_worker":
        return _worker_died(context, at, end)
    if end.detail == "split_sizes":
        return say.remedies(
            context.evidence,
            f"{at}: let each rank send another as many elements as that one expects (input_split_sizes[j] on rank i = "
            "output_split_sizes[i] on rank j); exchange the sizes first where they depend on data",
            "what this rank sends to itself is not what it expects from itself",
        )
    if end.signal == "SIGINT":
        return say.remedies(
            context.evidence,
            "look for who sent SIGINT to this process alone: kill -INT, a debugger, a terminal that only it belongs to",
            "Ctrl-C reaches the launcher and every rank; this one was interrupted by itself",
        )
    if end.detail == "model_differs":
        return say.remedies(
            context.evidence,
            f"build the same model on every rank before {at}: sizes that depend on data (a vocabulary, a number of "
            "classes) must be computed once and broadcast",
            "DDP compares the parameters of all ranks with those of rank 0 when it is made",
        )
    if end.detail in {"cgroup", "nccl_memory"}:
        return _outside_torch(context, end)
    return ()


def _outside_torch(context: Context, end: Ending) -> tuple[Remedy, ...]:
    """Memory that torch's allocator does not hand out: the host's, or what NCCL takes on the device beside it."""
    if end.detail == "cgroup":
        return say.remedies(
            context.evidence,
            "ask for more host memory (sbatch --mem), or hold less there: fewer workers of the data loader, a lower "
            "prefetch_factor, checkpoints written by one rank at a time",
            "the kernel ends a process of a job that is over its limit",
        )
    return say.remedies(
        context.evidence,
        "leave NCCL room on the device: torch.cuda.set_per_process_memory_fraction(0.9), a smaller micro-batch, fewer "
        "process groups, or a lower NCCL_BUFFSIZE",
        "NCCL takes its buffers from what torch's allocator left over",
    )


def _worker_died(context: Context, at: str, end: Ending) -> tuple[Remedy, ...]:
    """A worker process of the data loader is gone; the exception is only the messenger."""
    killed = "Killed" in end.what
    return say.remedies(
        context.evidence,
        f"find what ended the worker of the data loader at {at}: dmesg names it if memory ran out (then fewer workers, "
        "a lower prefetch_factor, less held by the dataset), df /dev/shm shows whether shared memory did; with "
        "num_workers=0 the dataset's own error shows itself",
        "SIGKILL mostly comes from the kernel when the host's memory runs out"
        if killed
        else "the worker left without a traceback of its own",
    )
