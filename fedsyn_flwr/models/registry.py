"""The models by name, and the one function that builds them."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import cast

import torch

from fedsyn_flwr import plugins
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models.base import SplitModel
from fedsyn_flwr.models.cnn import LeNet, PooledCnn, SmallCnn
from fedsyn_flwr.models.layers import NORMS, Norm, with_projection
from fedsyn_flwr.models.mlp import Mlp
from fedsyn_flwr.models.resnet import ResNet18
from fedsyn_flwr.models.vgg import Vgg8

GROUP = "fedsyn.models"
Builder = Callable[[tuple[int, int, int], int, Norm, float], SplitModel]


@dataclass(frozen=True)
class ModelSpec:
    """A model that can be chosen.

    Attributes
    ----------
    name : str
        What the configuration calls it.
    builder : Builder
        Makes it from (in_shape, num_classes, norm, width).
    min_size : int
        The least height and width of an image, in pixels.
    summary : str
        One line for `fedsyn models`.
    """

    name: str
    builder: Builder
    min_size: int
    summary: str


_SPECS = (
    ModelSpec("mlp", Mlp, 1, "perceptron 1024-1024-128 (the MrTF paper's MNIST model)"),
    ModelSpec("cnn", SmallCnn, 4, "two 3x3 convolutions 32-64, 128 features"),
    ModelSpec("cnn-gap", PooledCnn, 4, "three 3x3 convolutions 32-64-128, mean-pooled features"),
    ModelSpec("lenet", LeNet, 4, "LeNet-5, padded: two 5x5 convolutions 6-16, 84 features"),
    ModelSpec("vgg8", Vgg8, 16, "64-128-256-512-512, head 512-512 (the MrTF paper's CIFAR model)"),
    ModelSpec("resnet18", ResNet18, 8, "ResNet-18 with a 3x3 stem, 512 features"),
)
MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def build_model(
    name: str,
    *,
    in_shape: tuple[int, int, int],
    num_classes: int,
    norm: str = "gn",
    width: float = 1.0,
    projection_dim: int = 0,
    seed: int,
) -> SplitModel:
    """Build a freshly initialised model on the CPU.

    Parameters
    ----------
    name : str
        A key of :data:`MODELS`.
    in_shape : tuple of int
        (C, H, W) of the images; H and W at least the model's ``min_size``.
    num_classes : int
        Number of logits, at least 1.
    norm : {"gn", "bn", "none"}
        Normalisation after every convolution (in an mlp: after every hidden layer).
    width : float
        Multiplies every layer's channels, above 0; 1 is the model of the literature.
    projection_dim : int
        Above 0: MOON's projection head of that size, see :func:`with_projection`.
    seed : int
        The same seed gives the same bits. Torch's own generators are left as they were.

    Raises
    ------
    UserError
        If a value is not allowed; the message lists what is.
    """
    _check_options(in_shape, num_classes, norm, width)
    spec = _checked_spec(name, in_shape)
    # Neither torch.manual_seed (it reseeds CUDA as well) nor the caller's default device: the
    # first values come from one CPU generator, borrowed and then put back.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = spec.builder(in_shape, num_classes, cast(Norm, norm), width)
        return with_projection(model, projection_dim) if projection_dim else model


def _checked_spec(name: str, in_shape: tuple[int, int, int]) -> ModelSpec:
    """The spec called ``name``, or a UserError that lists the models that fit the images."""
    _, h, w = in_shape
    fitting = ", ".join(spec.name for spec in MODELS.values() if spec.min_size <= min(h, w))
    spec = MODELS.get(name) or plugins.load(GROUP, name, ModelSpec)
    if spec is None:
        hint = plugins.nearest(name, [*MODELS, *plugins.installed(GROUP)])
        raise UserError(
            f"model = {name!r} is unknown; for {h}x{w} images choose from: {fitting}{hint}"
        )
    if min(h, w) < spec.min_size:
        raise UserError(
            f"model = {name!r} needs images of {spec.min_size}x{spec.min_size} or larger, "
            f"these are {h}x{w}; choose from: {fitting}"
        )
    return spec


def _check_options(
    in_shape: tuple[int, int, int], num_classes: int, norm: str, width: float
) -> None:
    """Raise a UserError for the first option that no model takes."""
    if min(in_shape) < 1:
        raise UserError(f"image shape {in_shape} is empty; channels, height and width start at 1")
    if num_classes < 1:
        raise UserError(f"a model of {num_classes} classes cannot be built; it needs 1 or more")
    if norm not in NORMS:
        raise UserError(f"norm = {norm!r} is unknown; choose from: {', '.join(NORMS)}")
    if not 0 < width < inf:
        raise UserError(f"model-width = {width} must be a finite number above 0")
