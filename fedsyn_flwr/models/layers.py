"""The layers that the models share: normalisation by name, convolution blocks, pooling."""

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsyn_flwr.models.base import SplitModel

Norm = Literal["bn", "gn", "none"]
NORMS: tuple[str, ...] = get_args(Norm)

MAX_GROUPS = 8


def scaled(channels: int, width: float) -> int:
    """``channels * width``, rounded, at least 2 (GroupNorm needs two values to compare)."""
    return max(2, round(channels * width))


def num_groups(channels: int) -> int:
    """The largest divisor of ``channels``, up to 8, that leaves two channels or more per group.

    A group of one channel on a 1x1 map would hold one value, and normalise it to zero. So 32 → 8,
    16 → 8, 8 → 4, 6 → 3; a prime number of channels is one group.
    """
    largest = min(MAX_GROUPS, channels // 2)
    return next((g for g in range(largest, 1, -1) if channels % g == 0), 1)


def _forward_batch_norm(layer: _BatchNorm, x: Tensor) -> Tensor | None:
    """Normalise by the running statistics where the batch has one value per channel, else None."""
    if not layer.training or x.numel() > x.shape[1]:
        return None
    return F.batch_norm(
        x, layer.running_mean, layer.running_var, layer.weight, layer.bias, False, 0.0, layer.eps
    )


class BatchNorm1d(nn.BatchNorm1d):
    """BatchNorm1d that takes a training batch of one: it then uses the running statistics.

    A client of one sample, or a last batch of one, is ordinary here; PyTorch raises for it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B,d)."""
        lone = _forward_batch_norm(self, x)
        return super().forward(x) if lone is None else lone


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d that takes a training batch of one on a 1x1 map, as :class:`BatchNorm1d`."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B,c,h,w)."""
        lone = _forward_batch_norm(self, x)
        return super().forward(x) if lone is None else lone


def norm_layer(norm: Norm, channels: int, *, dims: Literal[1, 2] = 2) -> nn.Module:
    """The normalisation called ``norm`` for maps (B,channels,h,w), or vectors with ``dims=1``."""
    if norm == "bn":
        return BatchNorm2d(channels) if dims == 2 else BatchNorm1d(channels)
    if norm == "gn":
        return nn.GroupNorm(num_groups(channels), channels)
    return nn.Identity()


def conv_block(c_in: int, c_out: int, norm: Norm, *, kernel: int = 3) -> list[nn.Module]:
    """Convolution of unchanged size, normalisation, ReLU; a bias only where no norm has one."""
    return [
        nn.Conv2d(c_in, c_out, kernel, padding=kernel // 2, bias=norm == "none"),
        norm_layer(norm, c_out),
        nn.ReLU(inplace=True),
    ]


def linear_block(d_in: int, d_out: int, norm: Norm = "none") -> list[nn.Module]:
    """Linear, normalisation, ReLU; a bias only where no norm has one."""
    return [
        nn.Linear(d_in, d_out, bias=norm == "none"),
        norm_layer(norm, d_out, dims=1),
        nn.ReLU(inplace=True),
    ]


def global_pool() -> nn.Sequential:
    """Mean over the map: (B,c,h,w) → (B,c). Leaves a 1x1 map's values as they are."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def with_projection(model: SplitModel, dim: int) -> SplitModel:
    """The model with MOON's projection head (arXiv 2103.16257, section 3.3).

    Two layers d → d → ``dim`` end the neck, so z is the projection and a single linear layer
    classifies it. The head is part of the model: it is trained, sent and averaged with the rest.
    """
    d, classes = model.feature_dim, model.num_classes
    neck = nn.Sequential(model.neck, *linear_block(d, d), nn.Linear(d, dim))
    head = nn.Linear(dim, classes)
    return SplitModel(model.trunk, neck, head, feature_dim=dim, num_classes=classes)
