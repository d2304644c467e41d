"""The VGG8 of the MrTF paper (arXiv 2305.04201, CIFAR): 64-M-128-M-256-M-512-M-512-M."""

from itertools import pairwise

from torch import nn

from fedsyn_flwr.models.base import SplitModel
from fedsyn_flwr.models.layers import Norm, conv_block, global_pool, linear_block, scaled

STAGES = (64, 128, 256, 512, 512)
DROPOUT = 0.5


def _stages(widths: list[int], norm: Norm) -> nn.Sequential:
    """One convolution block and one halving pool per stage; ``widths`` starts with the input's."""
    layers: list[nn.Module] = []
    for c_in, c_out in pairwise(widths):
        # ceil_mode keeps the border of an odd map, and a 1x1 map alive: 28 → 14 → 7 → 4 → 2 → 1.
        layers += [*conv_block(c_in, c_out, norm), nn.MaxPool2d(2, ceil_mode=True)]
    return nn.Sequential(*layers)


class Vgg8(SplitModel):
    """Five convolutions, each pooled, h = 512 features and a head 512-512-K with dropout.

    All channels times ``width``. Images above 32x32 leave a map larger than 1x1, whose mean is z.
    Dropout draws from torch's global generator in training mode; its caller seeds that.
    """

    def __init__(
        self, in_shape: tuple[int, int, int], num_classes: int, norm: Norm, width: float
    ) -> None:
        widths = [in_shape[0], *(scaled(c, width) for c in STAGES)]
        d = widths[-1]
        trunk = _stages(widths, norm)
        head = nn.Sequential(*linear_block(d, d), nn.Dropout(DROPOUT), nn.Linear(d, num_classes))
        super().__init__(trunk, global_pool(), head, feature_dim=d, num_classes=num_classes)
