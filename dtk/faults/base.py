"""The base of faulty loops: a loop that knows when and on which rank its fault occurs."""

from typing import Any

from dtk.train.loop import Loop

FAULTS: dict[str, type["FaultyLoop"]] = {}
"""The faults that are code, by name; those that are settings are complete in their YAML file."""


class FaultyLoop(Loop):
    """The training loop with a fault in it; subclasses override the method in which it happens."""

    def __init_subclass__(cls, *, name: str) -> None:
        """Enter the fault under its name in the configuration."""
        super().__init_subclass__()
        FAULTS[name] = cls

    def run(self) -> bool:
        """Change what the fault needs changed, then train."""
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
        """The step in progress, counted from 1, until its optimizer step is done."""
        return self.state.step + 1

    def started(self, step: int) -> bool:
        """Whether `step`, counted from 1, is at or after the fault's first one."""
        return step >= int(self.fault.step)

    def strikes(self, step: int) -> bool:
        """Whether `step`, counted from 1, is the fault's step and this rank its rank."""
        return self.context.rank == int(self.fault.rank) and step == int(self.fault.step)
