"""`plan.json` of a run: what the closed form says of its job, kept at launch for `dtk diagnose` to compare with.

Never costs a run anything but one line on stderr.
"""

import dataclasses
import sys
from typing import Any, Literal

from diagnostics.contract.artifacts import RunPaths, write_json
from dtk.config.compose import Composed, compose
from dtk.config.schema import Config, NoFault, SettingFault
from dtk.errors import DtkError


def keep_plan(
    paths: RunPaths, composed: Composed, world_size: int, local_size: int, device: Literal["cpu", "cuda"]
) -> None:
    """Write what was planned into the run folder.

    Args:
        paths: the run folder.
        composed: its batch is settled.
        world_size: ranks over all nodes.
        local_size: ranks of one node.
        device: `cpu` or `cuda`, as the launcher decided.
    """
    try:
        if (plan := planned(composed, world_size, local_size, device)) is not None:
            write_json(paths.plan, plan)
    except OSError as error:
        _say(error)


def planned(
    composed: Composed, world_size: int, local_size: int, device: Literal["cpu", "cuda"]
) -> dict[str, Any] | None:
    """Return the plan to write; for a job with a planted fault, the plan of the job without the fault.

    Args: see `keep_plan`.

    Returns:
        None where the formulas do not know such a job, as a model of the user's own.
    """
    try:
        from dtk.plan.formulas.closed_form import closed_form

        config = _healthy(composed)
        config = dataclasses.replace(config, launcher=dataclasses.replace(config.launcher, device=device))
        return closed_form(config, world_size, local_size).as_json()
    except DtkError:
        return None
    except Exception as error:
        _say(error)
        return None


def _say(error: Exception) -> None:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"dtk: no plan was stored: {text}; the run goes on", file=sys.stderr)


def _healthy(composed: Composed) -> Config:
    """Return the same job without its fault; settings that the fault changed are read from the strategy's own file."""
    config = composed.config
    if not isinstance(config.fault, SettingFault):
        return config
    typed = [text for text in composed.overrides if text.lstrip("+~").startswith("strategy.")]
    strategy = compose([f"strategy={config.strategy.name}", *typed]).config.strategy
    return dataclasses.replace(config, strategy=strategy, fault=NoFault())
