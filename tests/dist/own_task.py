"""What a user brings whose samples are no tokens: data, a model and a task."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dtk.tasks.base import Sums, Task

try:
    import torchmetrics
except ImportError:
    torchmetrics = None


class Points(Dataset[Any]):
    """Inputs in a dict, targets in a list order of their size."""

    def __init__(self, size: int = 115) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> tuple[dict[str, Tensor], float]:
        x = torch.linspace(-0.3, 1, self.size)[number]
        return {"x": x.reshape(1), "bias": torch.ones(1)}, float(2 * x)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Linear(1, 1)
        self.offset = nn.Linear(1, 1)

    def forward(self, x: Tensor, bias: Tensor) -> dict[str, Tensor]:
        return {"y": self.slope(x) + self.offset(bias)}


class Relative(Task):
    """Absolute error, and how many targets are positive."""

    metric_names = ("positive",)

    def loss_sum(self, output: Any, targets: Tensor) -> Tensor:
        return (output["y"].squeeze(-1) - targets).abs().sum()

    def collected(self) -> dict[str, Any]:
        """A correlation of ranks is no quotient of sums: it needs all samples together."""
        return {"correlation": torchmetrics.SpearmanCorrCoef()} if torchmetrics else {}

    def collect(self, output: Any, targets: Tensor) -> tuple[Any, ...]:
        return output["y"].squeeze(-1), (targets - 0.45).abs()

    def metrics(self, output: Any, targets: Tensor) -> Sums:
        return {"positive": ((targets > 0).sum(), len(targets))}
