"""From a request to the complete report: the job, the hardware, both engines, and the optional sections."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from diagnostics.contract.formatting import counted
from dtk.config.placement import is_remote, tp_warning
from dtk.config.schema import Config
from dtk.console.progress import Busy
from dtk.errors import DtkError
from dtk.plan.compare import compare, search
from dtk.plan.formulas.holding import TRAININGS
from dtk.plan.formulas.prediction import notes
from dtk.plan.job import Choice, Machine, differences, machine, planned_job, predict, ranks_of
from dtk.plan.model import Check, PlanReport
from dtk.plan.solve import DEFAULT_WORLD_SIZES, check_solvable, max_batch, max_model, parse_world_sizes, scaling

_HARDWARE = "hardware="
_SLOW = 4  # Ratio of matrix rates above which the slower dtype is probably a default: fp32 to bf16 is 15, tf32 2.
_SHORT = 4  # A sample of at most this fraction of the context is probably an unchanged default.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The user's request, as typed."""

    overrides: tuple[str, ...]
    config_dir: Path | None = None
    engine: Choice = "auto"
    compare: bool = False
    search: bool = False
    max_model: bool = False
    max_batch: bool = False
    memory_table: bool = False
    world_size: str | None = None
    """Comma-separated numbers of ranks to plan for."""
    html: bool = False
    """Whether a page with plots is written: it needs figures over numbers of ranks even if none were requested."""


def make(request: Request) -> PlanReport:
    """Make the report of a plan; DtkError if the job, the hardware or an option cannot be used."""
    sizes = parse_world_sizes(request.world_size) if request.world_size is not None else ()
    # The hardware is not part of the experiment.
    named = [text for text in request.overrides if text.startswith(_HARDWARE)]
    overrides = [text for text in request.overrides if text not in named]
    hardware = None
    if named:
        from dtk.plan.timing.hardware import load_hardware

        hardware = load_hardware(named[-1].removeprefix(_HARDWARE), request.config_dir)
    job = planned_job(overrides, request.config_dir, devices=hardware.devices_per_node if hardware else None)
    target = machine(job.config, hardware, request.engine)
    ranks = ranks_of(job.config)
    for option in ("max_model", "max_batch", "search"):
        if getattr(request, option):
            check_solvable(job.config, target, "--" + option.replace("_", "-"))
    with Busy("planning"):
        searched = search(job, target) if request.search else None
        best = searched.fitting[0] if searched and searched.fitting else None
        plan = best.prediction if best else predict(job.config, ranks, target)
    check, notes = (None, ()) if best else _check(request.engine, job.config, ranks, target)
    with Busy("comparing"):
        comparison = compare(job, target, request.config_dir) if request.compare else None
        if not sizes and request.html and not job.config.strategy.traits.one_process:
            sizes = tuple(sorted({*DEFAULT_WORLD_SIZES, ranks}))
        points = scaling(job, sizes, target) if sizes else ()
        models = max_model(job, target) if request.max_model else ()
        batch = max_batch(job, target) if request.max_batch else None
    filled_in = [f"{text} was filled in; the run needs it as well." for text in job.overrides if text not in overrides]
    chosen = any(text.startswith(("launcher.world_size=", "launcher.nproc=")) for text in overrides)
    if not (chosen or is_remote(job.config.launcher)):
        start = f"{counted(ranks, 'rank')}, as dtk run would start on one machine"
        filled_in.append(f"{start}; launcher.world_size=N plans for another number.")
    return PlanReport(
        job=(*job.overrides, *(best.overrides if best else ()), *named),
        plan=plan,
        compute_dtype=job.config.precision.matmul_dtype,
        local_size=target.local_size,
        check=check,
        comparison=comparison,
        search=searched,
        scaling=points,
        models=models,
        batch=batch,
        trainings=TRAININGS if request.memory_table else (),
        notes=(*filled_in, *notes),
        doubts=_doubts(job.config, target),
    )


def _check(choice: Choice, config: Config, ranks: int, target: Machine) -> tuple[Check | None, tuple[str, ...]]:
    """Predict the same job with both engines; return the comparison and notes about it."""
    if target.engine == "simulated" or choice == "closed_form":
        return None, ()
    on_cpu = Machine(target.local_size)
    config = dataclasses.replace(config, launcher=dataclasses.replace(config.launcher, device="cpu"))
    try:
        with Busy("simulating the step"):
            closed_form, simulated = predict(config, ranks, on_cpu), predict(config, ranks, on_cpu, "simulated")
    except Exception as error:
        text = " ".join(str(error).split())
        problem = text if isinstance(error, DtkError) else f"{type(error).__name__}: {text}"
        if choice == "both":
            raise DtkError("the job cannot be simulated", problem, "use --engine closed_form") from error
        return None, (f"The simulated check was not possible: {problem}",)
    return Check(closed_form, simulated, differences(closed_form, simulated)), ()


def _doubts(config: Config, target: Machine) -> tuple[str, ...]:
    """Return settings that will probably differ in the run, and layers that wait for slow links between nodes."""
    slow_links, ratio, is_short = tp_warning(config, ranks_of(config), target.local_size), 0.0, False
    hardware = target.hardware
    if hardware is not None and hardware.backend != "gloo":
        if "bfloat16" in hardware.matmul_flops:
            ratio = hardware.matmul_rate("bfloat16") / hardware.matmul_rate(config.precision.matmul_dtype)
        is_short = config.data.sequence_length * _SHORT <= config.model.context_length
    rules = {"tp": slow_links, "precision": ratio >= _SLOW, "short": is_short}
    return notes(__file__, rules, c=config, slow_links=slow_links, hardware=hardware and hardware.name, ratio=ratio)
