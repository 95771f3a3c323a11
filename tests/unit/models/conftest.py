"""Small models whose parameters are all random and large, so that a wrong term shows in the logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dtk.models.build import build_model

Build = Callable[[Any], nn.Module]


@pytest.fixture
def random_model() -> Build:
    """Builds a model from its configuration, in eval mode."""

    def build(config: Any) -> nn.Module:
        model = build_model(config, []).eval()
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.3, generator=generator)
        return model

    return build
