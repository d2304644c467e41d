"""Evaluation by the clients: whom to ask, which answers count, and what they amount to.

Two models of a round are tested on images that no client trains on: the global model, by clients
that are asked for it, and each trained client's own model before it is averaged (personalised).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from flwr.common import FitRes

from fedsyn_flwr.config import Config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.client_scores import Scores
from fedsyn_flwr.server.requests import Reply, sample_clients
from fedsyn_flwr.server.round_record import RoundRecord
from fedsyn_flwr.server.update import Update

GLOBAL, OWN = "clients", "personalised"
WORST = 0.1
"""The share of the clients, those with the lowest accuracies, that ``worst10`` is the mean of."""


class FederatedEvaluation:
    """The clients' tests of a round.

    Parameters
    ----------
    config : Config
        The run's.
    classes : int
        The model's.
    record : RoundRecord
        Is told who failed, why, and the bytes.
    """

    def __init__(self, config: Config, classes: int, record: RoundRecord) -> None:
        self.settings, self.seed = config.evaluation, config.federation.seed
        self.classes, self.record = classes, record
        self.on = config.evaluation.federated
        self.measured = False
        self.of_model: list[Scores] = []
        self.of_own: list[Scores] = []

    def sample(self, everyone: Collection[int], server_round: int) -> list[int]:
        """Clients to ask: the share, at least the least number, ascending; another draw than that
        of training. As Flower does, but a function of seed and round.
        """
        share = round(self.settings.fraction_evaluate * len(everyone))
        count = min(len(everyone), max(share, self.settings.min_evaluate_clients))
        key = (self.seed, server_round, "evaluation")
        return sample_clients(everyone, count / len(everyone), key)

    # ---- the global model

    def open(self) -> None:
        """Before an evaluation."""
        self.of_model = []

    def receive(self, reply: Reply) -> None:
        """Count a client's answer, once it is seen to be a possible one."""
        self.record.count("bytes/down", reply.down)
        self.record.count("bytes/up", reply.up)
        if reply.result is None:
            self.fail(reply.partition, reply.reason)
            return
        try:
            self.of_model.append(self.checked(reply.result))
        except UserError as error:
            self.record.count("clients/evaluation_rejected")
            self.fail(reply.partition, str(error))

    def checked(self, result: FitRes) -> Scores:
        """An answer's scores.

        Raises
        ------
        UserError
            If they are impossible, or not of as many images as it says.
        """
        scores = Scores.read(result.metrics, self.classes)
        if type(result.num_examples) is not int or result.num_examples != scores.examples:
            raise UserError(
                f"it says that it tested {result.num_examples} images, and counts {scores.examples}"
            )
        return scores

    def fail(self, partition: int, reason: str) -> None:
        """Leave a client out of the evaluation; its training counts all the same."""
        self.record.count("clients/evaluation_failed")
        self.record.reasons.append(f"client {partition}: {reason}")

    def figures(self) -> dict[str, float]:
        """What the clients found out about the global model."""
        return figures(self.of_model, GLOBAL)

    # ---- clients' own models, which come with their training

    def clear(self, evaluated: bool) -> None:
        """Before an attempt at a round's training, whose result is evaluated or not."""
        self.measured, self.of_own = self.on and evaluated, []

    def sound(self, update: Update) -> bool:
        """Whether a trained client has tested its own model as asked; else it is refused."""
        try:
            if self.measured:
                Scores.read(update.metrics, self.classes)
        except UserError as error:
            self.record.reject(update.partition, str(error))
            return False
        return True

    def keep(self, update: Update) -> None:
        """Count a sound client's test of its own model."""
        if self.measured:
            self.of_own.append(Scores.read(update.metrics, self.classes))

    def own_figures(self) -> dict[str, float]:
        """What the clients found out about their own models."""
        return figures(self.of_own, OWN)


def figures(found: Sequence[Scores], whose: str) -> dict[str, float]:
    """Accuracies over clients, over samples and by class; nothing where nobody had an image.

    Parameters
    ----------
    found : sequence of Scores
        One per client; those without an image have no say.
    whose : str
        The names' first part.

    Returns
    -------
    dict
        ``test_accuracy`` and ``test_loss`` over all samples; ``test_accuracy_mean``, ``_std``
        (divided by the number of clients) and ``_worst10`` over clients; ``class_C_accuracy`` of
        the classes that have test images; ``tested``, the clients, and ``test_examples``.
    """
    found = [scores for scores in found if scores.examples]
    if not found:
        return {}
    accuracies = np.sort([scores.accuracy for scores in found])
    worst = accuracies[: math.ceil(WORST * len(accuracies))]
    right, seen = (sum(getattr(s, name) for s in found) for name in ("right", "seen"))
    total = int(seen.sum())
    return {
        f"{whose}/test_accuracy": int(right.sum()) / total,
        f"{whose}/test_loss": sum(s.loss * s.examples for s in found) / total,
        f"{whose}/test_accuracy_mean": float(accuracies.mean()),
        f"{whose}/test_accuracy_std": float(accuracies.std()),
        f"{whose}/test_accuracy_worst10": float(worst.mean()),
        f"{whose}/tested": len(found),
        f"{whose}/test_examples": total,
        **{f"{whose}/class_{c}_accuracy": right[c] / seen[c] for c in np.flatnonzero(seen)},
    }
