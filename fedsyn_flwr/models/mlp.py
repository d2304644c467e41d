"""The multi-layer perceptron of the MrTF paper (arXiv 2305.04201, MNIST): 784-1024-1024-128."""

from math import prod

from torch import nn

from fedsyn_flwr.models.base import SplitModel
from fedsyn_flwr.models.layers import Norm, linear_block, scaled


class Mlp(SplitModel):
    """Three hidden layers of 1024, 1024 and 128 units times ``width``; the map is z itself."""

    def __init__(
        self, in_shape: tuple[int, int, int], num_classes: int, norm: Norm, width: float
    ) -> None:
        hidden, d = scaled(1024, width), scaled(128, width)
        trunk = nn.Sequential(
            nn.Flatten(),
            *linear_block(prod(in_shape), hidden, norm),
            *linear_block(hidden, hidden, norm),
            *linear_block(hidden, d, norm),
        )
        head = nn.Linear(d, num_classes)
        super().__init__(trunk, nn.Identity(), head, feature_dim=d, num_classes=num_classes)
