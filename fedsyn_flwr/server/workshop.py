"""What the server does with an average before it is the new model, as parts that a run chooses."""

from __future__ import annotations

from logging import WARNING
from typing import Any

from flwr.common import log

from fedsyn_flwr.config import Config
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.models.flat_model import FlatModel, Vectors
from fedsyn_flwr.privacy.dp import Accountant
from fedsyn_flwr.server import refinement, server_optimizer
from fedsyn_flwr.server.averaging import RunningAverage
from fedsyn_flwr.server.drift import Drift
from fedsyn_flwr.server.evaluation import Evaluator
from fedsyn_flwr.server.refinement import Images
from fedsyn_flwr.server.roster import Roster
from fedsyn_flwr.server.round_record import Ledger


class Workshop(Ledger):
    """The half of a strategy with the server's own tools: sums, optimiser, refinement, accountant.

    Attributes
    ----------
    server_optimizer : str
        The server optimiser that the method is named after; empty where the key decides.
    refinement : str
        The same of the refinement.
    makes_pool : bool
        Whether the method has synthetic images to refine on.
    """

    server_optimizer = ""
    refinement = ""
    makes_pool = False

    config: Config
    flat: FlatModel
    evaluator: Evaluator
    model: Vectors
    roster: Roster
    sampled: int
    measured: bool

    def equip(self) -> None:
        """Build the tools that the configuration names; UserError where they do not fit."""
        config = self.config
        self.optimizer = server_optimizer.chosen(config.server, self.server_optimizer)
        self.moments: Group = {}
        self.refiner = refinement.chosen(config, self.refinement, self.makes_pool, self.flat)
        self.said = ""
        self.accountant = Accountant(config.privacy, config.federation.weighting == "uniform")

    def open_sums(self) -> None:
        """Empty sums over a round's clients: their models, how far these moved, their losses."""
        self.average = RunningAverage(expected=self.sampled)
        self.drift = Drift(self.model["trainable"]) if self.measured else None
        self.losses: list[tuple[float, int]] = []

    def count_in(self, model: Vectors, weight: float) -> None:
        """Take a client's model into the sums."""
        self.average.add(model, weight)
        if self.drift:
            self.drift.add(model["trainable"], weight)

    def measure(self, mean: Vectors) -> None:
        """Report what the round's clients have in common, given their average."""
        if self.drift:
            self.metrics |= self.drift.metrics(mean["trainable"])
        total = sum(n for _, n in self.losses)
        self.metrics["clients/train_loss"] = sum(loss * n for loss, n in self.losses) / total

    def server_step(self, mean: Vectors) -> Vectors:
        """What becomes of the average: the server optimiser's step from w_t towards it.

        Only the trainable parameters take it; running statistics and counters are the average's.
        """
        if self.optimizer is None:
            return mean
        w, self.moments = self.optimizer.step(
            self.model["trainable"], mean["trainable"], self.moments
        )
        return {**mean, "trainable": w}

    def refine(self, model: Vectors, server_round: int) -> Vectors:
        """The server's own work on the new model: the refinement, where the run has one."""
        if self.refiner is None:
            return model
        refined = self.refiner.refine(self.model, model, server_round)
        self.metrics |= self.refiner.metrics
        self.spent("refinement", self.refiner.seconds)
        return refined

    def transductive_set(self) -> Images | None:
        """What the refinement works on; None where there is nothing yet."""
        return self.evaluator.data

    def state(self) -> tuple[Group, dict[str, Any]]:
        """What the server keeps besides the model, for checkpoints: arrays and JSON values."""
        arrays = {f"moment-{name}": array for name, array in self.moments.items()}
        scalars = self.accountant.state()
        if self.refiner is None:
            return arrays, scalars
        kept, said = self.refiner.state()
        return {**arrays, **kept}, {**scalars, **said}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        moments = {k: v for k, v in arrays.items() if k.startswith("moment-")}
        self.moments = {k.removeprefix("moment-"): v for k, v in moments.items()}
        self.accountant.restore(scalars)
        if self.refiner:
            self.refiner.restore(arrays, scalars)

    def refined_accuracy(self, refined: Vectors, accuracy: float) -> float:
        """The refined model's accuracy: the new model's, where that is the refined one."""
        if refined is self.model:
            return accuracy
        self.flat.load(refined)
        return self.evaluator(self.flat.module)[1]

    def account(self) -> None:
        """Report what the round's noisy models have spent of the clients' privacy."""
        self.accountant.release(self.sampled, len(self.losses))
        self.metrics |= self.accountant.metrics(len(self.roster))
        self.say_why_silent()

    def say_why_silent(self) -> None:
        """Once: why no ε is reported. That a method sends more than models shows in its replies."""
        silence = self.accountant.silence
        if self.accountant.active and silence not in ("", self.said):
            log(WARNING, "differential privacy: %s", silence)
            self.said = silence
