"""A model on a client's own test images."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.data import ResidentData
from fedsyn_flwr.messages.client_scores import Scores
from fedsyn_flwr.models import SplitModel


@torch.no_grad()
def scores(
    model: SplitModel, data: ResidentData, indices: Tensor, num_classes: int, batch_size: int
) -> Scores:
    """Counts by class and the mean cross-entropy; the model is left in eval mode.

    Parameters
    ----------
    model : SplitModel
        On the data's device.
    data : ResidentData
        Images and labels.
    indices : Tensor
        int64 (n,), those to test on; may be empty.
    num_classes : int
        The run's.
    batch_size : int
        Images per forward pass.
    """
    model.eval()
    loss, right, seen = 0.0, np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64)
    for chosen in indices.split(batch_size) if len(indices) else ():
        y = data.y(chosen)
        logits = model(data.x(chosen)).float()
        loss += float(F.cross_entropy(logits, y, reduction="sum"))
        correct = y[logits.argmax(dim=1) == y]
        seen += torch.bincount(y, minlength=num_classes).cpu().numpy()
        right += torch.bincount(correct, minlength=num_classes).cpu().numpy()
    return Scores(loss / max(1, len(indices)), right, seen)
