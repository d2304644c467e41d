"""ResNet-18 (arXiv 1512.03385) with the 3x3 stem that small images need."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedsyn_flwr.models.base import SplitModel
from fedsyn_flwr.models.layers import Norm, global_pool, norm_layer, scaled

STAGES = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


def _conv(c_in: int, c_out: int, *, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, c_in: int, c_out: int, norm: Norm, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(c_in, c_out, stride=stride)
        self.norm1 = norm_layer(norm, c_out)
        self.conv2 = _conv(c_out, c_out)
        self.norm2 = norm_layer(norm, c_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            projection = _conv(c_in, c_out, kernel=1, stride=stride)
            self.shortcut = nn.Sequential(projection, norm_layer(norm, c_out))

    def forward(self, x: Tensor) -> Tensor:
        """x (B,c_in,h,w) → (B,c_out,⌈h/stride⌉,⌈w/stride⌉)."""
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        out = self.norm2(self.conv2(out)) + self.shortcut(x)
        return F.relu(out, inplace=True)


def _trunk(in_channels: int, widths: list[int], norm: Norm) -> nn.Sequential:
    """A 3x3 stem and four stages of two blocks; every stage but the first halves the map."""
    stem = [_conv(in_channels, widths[0]), norm_layer(norm, widths[0]), nn.ReLU(inplace=True)]
    blocks: list[nn.Module] = []
    c_in = widths[0]
    for stage, c_out in enumerate(widths):
        for block in range(BLOCKS_PER_STAGE):
            stride = 2 if stage > 0 and block == 0 else 1
            blocks.append(BasicBlock(c_in, c_out, norm, stride))
            c_in = c_out
    return nn.Sequential(*stem, *blocks)


class ResNet18(SplitModel):
    """ResNet-18 for small images: 3x3 stem, no max-pool, mean pooling, 512 features.

    All channels times ``width``. 11,173,962 parameters for CIFAR-10 with BatchNorm.
    """

    def __init__(
        self, in_shape: tuple[int, int, int], num_classes: int, norm: Norm, width: float
    ) -> None:
        widths = [scaled(c, width) for c in STAGES]
        d = widths[-1]
        trunk = _trunk(in_shape[0], widths, norm)
        head = nn.Linear(d, num_classes)
        super().__init__(trunk, global_pool(), head, feature_dim=d, num_classes=num_classes)
