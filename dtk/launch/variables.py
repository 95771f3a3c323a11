"""The environment variables of the ranks according to the configuration, whatever launcher starts them."""

from collections.abc import Mapping

from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import Config
from dtk.nccl.render import fill, render
from dtk.parallel import loopback
from dtk.record.flight import environment as flight_environment


def rank_variables(
    config: Config, paths: RunPaths, here: Mapping[str, str] | None, *, threads: int = 0, one_machine: bool = False
) -> dict[str, str]:
    """Return the variables that the ranks need before they create a communicator; the user's values take precedence.

    `here` is the environment of the process that starts the ranks, or of the rank itself; None if they start elsewhere,
    where each adds what depends on its machine. With 0 `threads` each rank sets them itself. On `one_machine` loopback
    suffices. DtkError if the preset requires a key that is not set.
    """
    chosen = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    if config.train.deterministic:
        chosen["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if here is None:
        filled = ((name, fill(config.nccl, name, text, paths.root)) for name, text in config.nccl.variables.items())
        return {**{name: value for name, value in filled if value is not None}, **chosen}
    interfaces = loopback.interface_variables() if one_machine else {}
    preset = render(config.nccl, here, paths.root).variables
    return {**chosen, **interfaces, **flight_environment(config.record, paths), **preset}
