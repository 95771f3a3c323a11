"""The simulated jobs that are slow, by their cause."""

from tests.trace_scenarios import SCENARIOS
from tests.unit.diagnostics.causes.examples import Example

EXAMPLES = {one.cause: Example(lambda one=one: one.build().files(), one.ranks) for one in SCENARIOS if one.cause}
