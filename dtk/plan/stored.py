"""Writes `plan.json` of a run: the closed-form prediction, for `dtk diagnose`. Never fails a run."""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from diagnostics.contract.artifacts import RunPaths, write_json
from dtk.config.compose import Composed, compose
from dtk.config.placement import Placement
from dtk.config.schema import NoFault, SettingFault
from dtk.errors import DtkError


def keep_plan(paths: RunPaths, composed: Composed, placement: Placement) -> None:
    """Write the plan into the run folder."""
    if (plan := planned(composed, placement)) is not None:
        with _reported():
            write_json(paths.plan, plan)


def planned(composed: Composed, placement: Placement) -> dict[str, Any] | None:
    """Return the plan to write; for a job with an injected fault, the plan of the job without the fault.

    None if the formulas do not cover the job, such as a custom model, or fail, which stderr says.
    """
    config = composed.config
    with _reported(), suppress(DtkError):
        from dtk.plan.formulas.closed_form import closed_form

        if isinstance(config.fault, SettingFault):  # Settings that the fault changed are in the strategy's own file.
            typed = [text for text in composed.overrides if text.lstrip("+~").startswith("strategy.")]
            strategy = compose([f"strategy={config.strategy.name}", *typed]).config.strategy
            config = dataclasses.replace(config, strategy=strategy, fault=NoFault())
        launcher = dataclasses.replace(config.launcher, device=placement.device)
        config = dataclasses.replace(config, launcher=launcher)
        return closed_form(config, placement.world_size, placement.nproc).as_json()
    return None


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"dtk: no plan was stored: {text}; the run continues", file=sys.stderr)
