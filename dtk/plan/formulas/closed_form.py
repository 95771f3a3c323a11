"""The instant engine: a job's memory and traffic from formulas, without torch. See docs/plan_formulas.md."""

from collections.abc import Iterator

from dtk.config.schema import Config
from dtk.plan.formulas.shape import model_shape
from dtk.plan.formulas.stages import rank_memory
from dtk.plan.formulas.traffic import traffic
from dtk.plan.prediction import Memory, Prediction


def closed_form(config: Config, world_size: int, local_size: int = 8) -> Prediction:
    """Predict memory and traffic of one job without running anything.

    Args:
        config: checked, its micro-batch settled for `world_size`. CUDA's kernels are counted where `launcher.device`
            is cuda, else the CPU's.
        world_size: ranks over all nodes.
        local_size: consecutive ranks of one node.

    Raises:
        DtkError: `model.architecture=custom`.
    """
    parameters, sent = model_shape(config.model).parameters, traffic(config, world_size, local_size)
    figures = {"memory": memory(config, world_size), "traffic": sent, "notes": tuple(_assumptions(config))}
    return Prediction.of(config, world_size, engine="closed_form", parameters=parameters, **figures)


def memory(config: Config, world_size: int, whole: bool = False) -> Memory:
    """Return the memory of the fullest rank alone; see `rank_memory`.

    Raises:
        DtkError: `model.architecture=custom`.
    """
    # Of a pipeline both ends and their neighbours: the other ranks are like these.
    ranks = config.parallel.pp
    places = sorted({0, 1, ranks - 2, ranks - 1} & {*range(ranks)})
    return max((rank_memory(config, world_size, place, whole) for place in places), key=lambda each: each.peak_bytes)


def _assumptions(config: Config) -> Iterator[str]:
    """Yield the assumptions behind the figures and what no formula covers."""
    strategy = config.strategy
    if config.launcher.device == "cuda":
        kernels = "CUDA kernels: flash attention, fused norms; buffers rounded to 512 bytes"
        yield f"{kernels}. Not counted: fragmentation of the allocator, NCCL's buffers, workspaces of cuBLAS"
    elif not strategy.traits.one_process:
        yield "CPU kernels. Not counted: gloo's own copies of what it gathers and reduces, while it runs"
    if getattr(config.model, "dropout", 0.0) and config.launcher.device != "cuda":
        yield "with dropout the CPU's attention keeps the sequence x sequence matrix three times"
    if (parallel := config.parallel).pp > 1:
        fullest = "the fullest of the ranks at both ends of the pipeline and their neighbours"
        yield f"parallel.schedule={parallel.schedule}: the memory is that of {fullest}"
    if config.model.architecture == "moe":
        yield "experts get equal numbers of tokens; a rank whose experts get more holds more, and others wait for it"
    if config.train.compile:
        yield "train.compile=true: counted as without, what compiled blocks keep is not known"
    if strategy.traits.least_cuda_devices > 1:
        yield f"strategy={strategy.name}: counted as one device with the whole micro-batch"
    if strategy.traits.library:
        kept = "states are exact but for padding, buffers are the library's defaults, not held against runs"
        yield f"strategy={strategy.name}: {kept}"
    if strategy.offloads_parameters:
        yield "strategy.offload=parameters: shards, gradients and optimizer state are off the device, not in the peak"
