"""How well a model does, class by class, by torchmetrics."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

BINS = 15
"""Bins of the expected calibration error."""


@dataclass(frozen=True)
class Evaluation:
    """What a model did on N images of K classes.

    Attributes
    ----------
    accuracy, macro_f1, ece : float
        In [0, 1]; the F1 score's mean is over the classes that occur among labels or answers,
        the expected calibration error has 15 bins.
    classes : list of dict
        ``class``, ``images``, ``precision``, ``recall``, ``f1`` of every class.
    confusion : list of list of int
        (K, K), rows are the true classes.
    """

    images: int
    accuracy: float
    macro_f1: float
    ece: float
    classes: list[dict[str, Any]]
    confusion: list[list[int]]

    @property
    def names(self) -> list[str]:
        """The classes' names."""
        return [str(row["class"]) for row in self.classes]


def evaluate(logits: Tensor, labels: Tensor, names: Sequence[str]) -> Evaluation:
    """Measure logits (N, K) against labels, int64 (N,), of K classes."""
    from torchmetrics.functional import classification as tm

    k, probabilities = len(names), logits.softmax(dim=1)
    answers = logits.argmax(dim=1)
    per_class = {
        "precision": tm.multiclass_precision(answers, labels, k, average="none"),
        "recall": tm.multiclass_recall(answers, labels, k, average="none"),
        "f1": tm.multiclass_f1_score(answers, labels, k, average="none"),
    }
    confusion = tm.multiclass_confusion_matrix(answers, labels, k)
    counts = confusion.sum(dim=1).tolist()
    rows = [
        {"class": name, "images": counts[c], **{m: float(v[c]) for m, v in per_class.items()}}
        for c, name in enumerate(names)
    ]
    return Evaluation(
        images=len(labels),
        accuracy=float(tm.multiclass_accuracy(answers, labels, k, average="micro")),
        macro_f1=float(tm.multiclass_f1_score(answers, labels, k, average="macro")),
        ece=float(tm.multiclass_calibration_error(probabilities, labels, k, n_bins=BINS)),
        classes=rows,
        confusion=confusion.tolist(),
    )


def confusion_csv(found: Evaluation) -> str:
    """The confusion matrix with the classes' names: rows are true, columns answered."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["true", *found.names])
    writer.writerows([n, *row] for n, row in zip(found.names, found.confusion, strict=True))
    return out.getvalue()


def draw_confusion(found: Evaluation, path: Path) -> None:
    """The confusion matrix as a PNG; counts are written into it up to 20 classes."""
    import numpy as np
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    k = len(found.names)
    side = max(5.0, min(0.5 * k + 2, 20.0))
    figure = Figure(figsize=(side, side), layout="constrained")
    shown = ConfusionMatrixDisplay(np.array(found.confusion), display_labels=found.names)
    rotation = "vertical" if k > 10 else "horizontal"
    shown.plot(
        include_values=k <= 20,
        cmap="Blues",
        ax=figure.subplots(),
        xticks_rotation=rotation,
        colorbar=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
