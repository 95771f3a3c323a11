"""Bytes of model states per parameter in each kind of training with Adam, and what a stage of ZeRO leaves on a rank.

The table of Rajbhandari et al. 2020, "ZeRO", section 3.1, for more number formats. Activations, buffers of collectives
and gathered parameters are not model states; the rest of a plan has them.
"""

from dataclasses import dataclass

STAGES = (0, 1, 2, 3)
"""Of ZeRO: 0 shards nothing, 1 the optimizer state, 2 gradients too, 3 weights too."""


@dataclass(frozen=True, slots=True)
class Training:
    """Bytes per parameter."""

    name: str
    weights: int
    """What forward computes with."""
    gradients: int
    master: int
    """Float32 copy of the weights, which the optimizer updates."""
    momentum: int
    variance: int

    @property
    def per_parameter(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer

    @property
    def optimizer(self) -> int:
        """K of the ZeRO paper: what stage 1 shards."""
        return self.master + self.momentum + self.variance

    def rank_bytes(self, parameters: int, stage: int, ranks: int) -> float:
        """Bytes on one of `ranks` ranks, for so many parameters, cut evenly."""
        parts = (self.weights, 3), (self.gradients, 2), (self.optimizer, 1)
        return parameters * sum(size / (ranks if stage >= first else 1) for size, first in parts)


FULL = Training("fp32", 4, 4, 0, 4, 4)
"""Also what dtk keeps under every precision: float32 weights are their own master, copies of 16 bits are not kept."""
_MIXED = Training("fp16 mixed", 2, 2, 4, 4, 4), Training("bf16 mixed", 2, 2, 4, 4, 4)
TRAININGS = (FULL, *_MIXED, Training("pure bf16", 2, 2, 0, 2, 2))
