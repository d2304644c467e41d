"""Small convolutional networks, for digits and for short CIFAR runs."""

from torch import nn

from fedsyn_flwr.models.base import SplitModel
from fedsyn_flwr.models.layers import Norm, conv_block, linear_block, scaled


def _two_stages(in_channels: int, c1: int, c2: int, norm: Norm, kernel: int) -> nn.Sequential:
    """Two convolution blocks, each followed by a halving max-pool: (C,h,w) → (c2,h//4,w//4)."""
    return nn.Sequential(
        *conv_block(in_channels, c1, norm, kernel=kernel),
        nn.MaxPool2d(2),
        *conv_block(c1, c2, norm, kernel=kernel),
        nn.MaxPool2d(2),
    )


class SmallCnn(SplitModel):
    """Two 3x3 convolutions of 32 and 64 channels, then a linear layer of 128 features.

    All three numbers times ``width``. 545,098 parameters for CIFAR-10 without normalisation.
    """

    def __init__(
        self, in_shape: tuple[int, int, int], num_classes: int, norm: Norm, width: float
    ) -> None:
        channels, h, w = in_shape
        c1, c2, d = scaled(32, width), scaled(64, width), scaled(128, width)
        trunk = _two_stages(channels, c1, c2, norm, kernel=3)
        neck = nn.Sequential(nn.Flatten(), *linear_block(c2 * (h // 4) * (w // 4), d))
        head = nn.Linear(d, num_classes)
        super().__init__(trunk, neck, head, feature_dim=d, num_classes=num_classes)


class PooledCnn(SplitModel):
    """Three 3x3 convolutions of 32, 64 and 128 channels; the features are the mean of the map.

    The channels are multiplied by ``width``. Features pooled over the whole map are what HFMDS-FL
    matches, and the network that label skew hurts most at this size: without a hidden layer of
    its own, the head drifts to the client's classes at once.
    """

    def __init__(
        self, in_shape: tuple[int, int, int], num_classes: int, norm: Norm, width: float
    ) -> None:
        c1, c2, d = scaled(32, width), scaled(64, width), scaled(128, width)
        trunk = nn.Sequential(
            *_two_stages(in_shape[0], c1, c2, norm, kernel=3), *conv_block(c2, d, norm, kernel=3)
        )
        neck = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        head = nn.Linear(d, num_classes)
        super().__init__(trunk, neck, head, feature_dim=d, num_classes=num_classes)


class LeNet(SplitModel):
    """LeNet-5 with ReLU and max-pooling; both 5x5 convolutions are padded, so 8x8 images fit."""

    def __init__(
        self, in_shape: tuple[int, int, int], num_classes: int, norm: Norm, width: float
    ) -> None:
        channels, h, w = in_shape
        c1, c2 = scaled(6, width), scaled(16, width)
        hidden, d = scaled(120, width), scaled(84, width)
        trunk = _two_stages(channels, c1, c2, norm, kernel=5)
        neck = nn.Sequential(
            nn.Flatten(),
            *linear_block(c2 * (h // 4) * (w // 4), hidden),
            *linear_block(hidden, d),
        )
        head = nn.Linear(d, num_classes)
        super().__init__(trunk, neck, head, feature_dim=d, num_classes=num_classes)
