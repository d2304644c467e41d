"""Models as trunk + neck + classifier, chosen by name, and as flat vectors.

Read `base` and `registry`, then `flat_model`, in which form models travel and are averaged.
"""

from fedsyn_flwr.models.base import SplitModel
from fedsyn_flwr.models.layers import NORMS, Norm
from fedsyn_flwr.models.registry import MODELS, ModelSpec, build_model

__all__ = ["MODELS", "NORMS", "ModelSpec", "Norm", "SplitModel", "build_model"]
