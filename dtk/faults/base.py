"""The base class of faulty loops, which determines the step and rank at which a fault occurs."""

from typing import Any

from dtk.train.loop import Loop

FAULTS: dict[str, type["FaultyLoop"]] = {}
"""Faults implemented in code, by name; faults that consist of settings are complete in their YAML file."""


class FaultyLoop(Loop):
    """Training loop with a fault; subclasses override the method in which the fault occurs."""

    def __init_subclass__(cls, *, name: str) -> None:
        super().__init_subclass__()
        FAULTS[name] = cls

    def run(self) -> bool:
        """Prepare the fault, then train."""
        self._prepare()
        return super().run()

    def _prepare(self) -> None:
        pass

    @property
    def fault(self) -> Any:
        """The section `fault` of the configuration."""
        return self.config.fault

    @property
    def step_number(self) -> int:
        """Number of the current step, counted from 1, until its optimizer step is done."""
        return self.state.step + 1

    def started(self, step: int) -> bool:
        """Return whether `step`, counted from 1, is at or after the fault's first step."""
        return step >= int(self.fault.step)

    def strikes(self, step: int) -> bool:
        """Return whether `step`, counted from 1, and this rank are those of the fault."""
        return self.context.rank == int(self.fault.rank) and step == int(self.fault.step)
