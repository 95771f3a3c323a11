"""The candidates of each topic, as pure functions of the configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtk.config.schema import Config
from dtk.errors import Errors
from dtk.sharding.registry import CONFIG_TYPES, overrides_for, preferred

_errors = Errors(__file__)
BUCKETS_MB = (1.0, 5.0, 25.0, 50.0, 100.0)  # DDP's default of 25 and steps of two to five around it.
MICRO_BATCH_SIZE = "train.micro_batch_size"
BUCKET = "strategy.bucket_cap_mb"
WRAP = "strategy.blocks_per_unit"
PRESET = "nccl"
TUNED = {"micro_batch_size": MICRO_BATCH_SIZE, "bucket": BUCKET, "wrap": WRAP, "nccl": PRESET}
"""Topic -> the key that is tuned."""
_MOST_DIGITS = 9  # Keeps numbers within 32 bits.


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value of the tuned key."""

    key: str
    value: str
    present: bool = False
    """Whether the configuration already has it."""

    @property
    def override(self) -> str:
        """The override that selects it."""
        return f"{self.key}={self.value}"


def micro_batch_sizes(config: Config, world_size: int, most: int | None) -> list[int]:
    """Return the divisors of a rank's part of the global batch; DtkError if it cannot be split over the ranks."""
    plan = config.batch_plan(world_size)
    sizes = plan.micro_batch_sizes()
    _errors.refuse({"no_sizes": not sizes}, samples=plan.global_batch_size, ranks=plan.dp_size)
    return [size for size in sizes if most is None or size <= most]


def buckets(config: Config, world_size: int, values: Sequence[str]) -> list[Candidate]:
    """Return the sizes of DDP's buckets, the present one among them; DtkError without buckets, or if one is no size."""
    sizes = []
    for text in values:
        try:
            sizes.append(float(text))
        except ValueError:
            sizes.append(0.0)
        _errors.refuse({"bucket": not 0 < sizes[-1] < 10**_MOST_DIGITS}, value=repr(text))
    return _with_present(BUCKET, sizes or BUCKETS_MB, _present(config, world_size, "buckets", BUCKET))


def units(config: Config, world_size: int, values: Sequence[str]) -> list[Candidate]:
    """Return how many blocks FSDP gathers together: 1, 2, 4 up to all of them, and 0 for the whole model as one unit;
    DtkError if the strategy has no units, or a value is not a number of blocks.
    """
    for text in values:
        _errors.refuse({"blocks": not text.isdecimal() or len(text) > _MOST_DIGITS}, value=repr(text))
    blocks = [int(text) for text in values]
    present = _present(config, world_size, "units", WRAP)
    layers = getattr(config.model, "layers", 4)
    doubled = [1 << n for n in range(32) if 1 << n < layers]
    return _with_present(WRAP, blocks or [*doubled, 0], present)


def _present(config: Config, world_size: int, gradients_in: str, key: str) -> Any:
    """Return the value of a strategy's key, which the job has if its gradients travel in `buckets` or `units`."""
    use = overrides_for(gradients_in, config.strategy, config.mesh(world_size), config.parallel.cut)
    value = getattr(config.strategy, key.partition(".")[2], None)
    if use or value is None:  # A variant for this mesh may have units, but not the key.
        *rest, last = (name for name, section in CONFIG_TYPES.items() if section.traits.gradients_in == gradients_in)
        use, names = use or f"strategy={preferred(gradients_in)}", f"{', '.join(rest)} and {last}"
        row = "no_buckets" if gradients_in == "buckets" else "no_units"
        raise _errors(row, c=config, cut=" ".join(config.parallel.cut), names=names, key=key, use=use)
    return value


def presets(present: str, usable: Sequence[str], values: Sequence[str]) -> list[Candidate]:
    """Return the presets that can be used here.

    `usable` fit the backend and need nothing that was not given; no `values` = all. DtkError if only the present one.
    """
    candidates = _with_present(PRESET, list(values) or list(usable), present)
    _errors.refuse({"no_preset": len(candidates) < 2}, present=present)
    return candidates


def _with_present(key: str, values: Sequence[float | str], present: float | str) -> list[Candidate]:
    others = [value for value in dict.fromkeys(values) if value != present]
    texts = {value: value if isinstance(value, str) else f"{value:g}" for value in (present, *others)}
    return [Candidate(key, text, value == present) for value, text in texts.items()]
