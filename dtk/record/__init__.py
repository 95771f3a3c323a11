"""What a run records: regions, metrics, telemetry, flight recorder, trackers.

For custom training loops: `attach`, `hf_trainer_callback`, `lightning_callback` (docs/own_loop.md).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtk.record.integrations import hf_trainer_callback, lightning_callback
    from dtk.record.own_loop import attach

__all__ = ["attach", "hf_trainer_callback", "lightning_callback"]


def __getattr__(name: str) -> Any:
    """Import lazily: most of this package is used by commands that must not import torch."""
    if name not in __all__:
        raise AttributeError(name)
    from dtk.record import integrations, own_loop

    return getattr(own_loop if name == "attach" else integrations, name)
