"""Host memory of a node: what offloading keeps there on all its ranks, against what there is.

Knows neither how a figure is predicted nor how it is shown.
"""

import dataclasses

from dtk.config.schema import Config
from dtk.plan.engines import Machine, predict
from dtk.plan.prediction import Prediction


def predict_on_node(config: Config, world_size: int, here: Machine) -> Prediction:
    """As `engines.predict`, with the node's host memory.

    Args:
        config: its batch is settled for `world_size`.
        world_size: ranks over all nodes.
        here: the machine.

    Raises:
        DtkError: the engine cannot say anything of this job.
    """
    made = predict(config, world_size, here)
    there = None if here.hardware is None else here.hardware.host_memory_bytes
    return dataclasses.replace(made, node_ranks=min(here.local_size, world_size), node_host_bytes=there)


def excess_bytes(made: Prediction) -> int:
    """Bytes beyond the device, or beyond the host of its node, whichever is more; 0 or less fits."""
    over = made.memory.peak_bytes - (made.device_memory_bytes or 0)
    if made.node_host_bytes is None or not made.memory.host_bytes:
        return over
    return max(over, made.host_bytes_per_node - made.node_host_bytes)
