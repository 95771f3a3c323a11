"""What DeepSpeed's ZeRO holds at each moment of a step: parameters flattened and cut into equal parts."""

from dataclasses import dataclass

from dtk.plan.formulas.holding import ROOT
from dtk.plan.formulas.ledger import Buffer
from dtk.plan.formulas.replication import Replicated
from dtk.plan.formulas.states import MASTER_BYTES
from dtk.strategies.declared import ITEM_BYTES
from dtk.strategies.engines.deepspeed_config import REDUCE_BUCKET


@dataclass(slots=True)
class FlatParts(Replicated):
    """Rajbhandari et al. 2020, section 5, with what DeepSpeed 0.19 keeps beside: float32 copies and a bucket buffer.

    States are exact but for padding. Buffers are those of the library's defaults: on CUDA the bucket is allocated in
    full, and gathered parameters stay from forward to backward (stage3_max_reuse_distance).
    """

    bucket: Buffer | None = None
    """In which gradients are reduced, from the first of a micro-batch to the last."""
    gathered: Buffer | None = None
    """What stage 3 gathers of other ranks' parameters."""

    def settle(self) -> None:
        """Parameters in the type of compute, whole or in part, the float32 copy of this rank's part, and its state."""
        whole, own = self.shape.parameters, -(-self.shape.parameters // self.mesh.dp_size)
        self.ledger.change("parameters", self._item_bytes * (own if self.config.strategy.stage == 3 else whole))
        before = self.ledger.in_use.copy()
        self.ledger.change("optimizer states", MASTER_BYTES * own)
        self.place_states(own, 2, lambda shape: own)
        if self.config.strategy.offload != "none" and self.on_cuda:
            for category, size in (self.ledger.in_use - before).items():
                self.ledger.change(category, -size)
                self.host_bytes += size
        self.temporary_bytes += MASTER_BYTES * own  # The gradients of this rank's part, flat and in float32.

    def before_forward(self, unit: int) -> None:
        """Gather, under stage 3."""
        if unit == ROOT and self.config.strategy.stage == 3 and self.gathered is None:
            others = self.shape.parameters - self.shape.parameters // self.mesh.dp_size
            self.gathered = self.ledger.allocate("gathered parameters", self._item_bytes * others)

    def after_backward(self, unit: int) -> None:
        """Free what was gathered and the bucket."""
        if unit == ROOT:
            for buffer in (self.gathered, self.bucket):
                if buffer is not None:
                    buffer.drop()
            self.gathered = self.bucket = None

    def gradient(self, name: str, gradient: Buffer) -> None:
        """Keep it until the update under stage 1, else put it into the bucket and keep this rank's part."""
        if self.bucket is None:
            most = self.config.strategy.tuned("reduce_bucket_size", REDUCE_BUCKET)
            elements = most if self.on_cuda else min(most, self.shape.parameters)
            self.bucket = self.ledger.allocate("buckets", self._item_bytes * elements)
        if self.config.strategy.stage == 1:
            Replicated.gradient(self, name, gradient)
            return
        if name not in self.gradients:
            self.gradients[name] = self.ledger.allocate("gradients", gradient.size_bytes // self.mesh.dp_size)
        gradient.drop()

    @property
    def _item_bytes(self) -> int:
        return ITEM_BYTES[self.config.precision.compute_dtype]
