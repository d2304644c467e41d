"""Accuracy and loss of a model on the server's test set."""

import math

import torch
from torch.nn import functional as F

from fedsyn_flwr.data import ResidentData
from fedsyn_flwr.models import SplitModel


class Evaluator:
    """The test set, resident.

    Parameters
    ----------
    data : ResidentData
        Images and labels.
    batch_size : int
        Images per forward pass.
    """

    def __init__(self, data: ResidentData, batch_size: int) -> None:
        self.data = data
        self.batch_size = batch_size

    @torch.no_grad()
    def __call__(self, model: SplitModel) -> tuple[float, float]:
        """Mean cross-entropy in nats and accuracy in [0, 1]; the model is left in eval mode.

        Both are nan where the server has no images.
        """
        if not len(self.data):
            return math.nan, math.nan
        model.eval()
        loss, right = torch.zeros((), dtype=torch.float64), 0
        for indices in torch.arange(len(self.data)).split(self.batch_size):
            y = self.data.y(indices)
            logits = model(self.data.x(indices))
            loss += F.cross_entropy(logits, y, reduction="sum").cpu()
            right += int((logits.argmax(dim=1) == y).sum())
        return float(loss) / len(self.data), right / len(self.data)
