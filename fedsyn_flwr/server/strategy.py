"""The strategy every method starts from: FedAvg as a running sum, with places to plug in.

It is a plain `flwr.server.strategy.Strategy`: our server folds each reply as it arrives, Flower's
stock server hands the whole list to `aggregate_fit`, and both end in the same model.
"""

from __future__ import annotations

from logging import INFO
from typing import Any

from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from fedsyn_flwr.config import Config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import (
    Group,
    Groups,
    from_parameters,
    hold,
    is_finite,
    nbytes,
)
from fedsyn_flwr.messages.transport import Probe
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.server.checkpoint import Checkpoint
from fedsyn_flwr.server.client_versions import Kept
from fedsyn_flwr.server.evaluation import Evaluator
from fedsyn_flwr.server.post import Post
from fedsyn_flwr.server.requests import Reply, sample_clients
from fedsyn_flwr.server.roster import Roster
from fedsyn_flwr.server.round_record import Metrics


class FedStrategy(Post, Strategy):
    """Federated averaging; other methods override the step that their paper changes.

    Parameters
    ----------
    config : Config
        The run's configuration.
    flat : FlatModel
        The server's model: initial weights, later a place to evaluate in.
    evaluator : Evaluator
        The test set.
    run : str
        Identifies the run's state on the nodes.

    Attributes
    ----------
    model : dict
        w_t, as vectors.
    roster : Roster
        Partition → client, once all are known.
    """

    def __init__(self, config: Config, flat: FlatModel, evaluator: Evaluator, run: str) -> None:
        super().__init__()
        self.config = config
        self.federation = config.federation
        self.params: Any = config.params
        self.flat = flat
        self.evaluator = evaluator
        self.run = run
        self.model = flat.copy_vectors()
        self.parameters = self.serialise({})
        self.roster = Roster(self.federation.node_timeout, evaluator.data.shape)
        self.kept = Kept()
        self.settled = 0
        self.pool_version = 0
        self.equip()
        self.attempt = self.sampled = 0
        self.measured = True
        self.progress = lambda phase, done, total: None
        self.clear()

    # ---- where a method plugs in

    def prepare(self) -> None:
        """Before round 1's training, with all clients known; counted as part of that round."""

    def welcome(self, partition: int) -> None:
        """Another node, which has nothing of the run yet, stands for this client from now on."""

    def before_fit(self, server_round: int) -> None:
        """Before a round's training, e.g. a synthesis by all clients."""

    def shared(self) -> Group:
        """The pool of ``pool_version``, for people: uint8 pixels ``images``, int64 ``labels``."""
        raise NotImplementedError(f"{type(self).__name__} shares no images")

    def fold(self, reply: Reply) -> None:
        """Take one trained model into the round's average; replies come in partition order."""
        result, groups = self.accept(reply)
        if result is not None and "model" not in groups:
            self.reject(reply.partition, "its answer holds no model")
        elif result is not None:
            self.absorb(result, groups)
            if self.kept.take(reply.partition, result.metrics):
                self.count("clients/state_lost", 1)

    def absorb(self, result: FitRes, groups: Groups) -> None:
        """Add a sound reply to the round's sums."""
        weight = self.weight_of(result)
        if weight > 0:
            self.count_in(groups["model"], weight)
            self.losses.append((float(result.metrics["train-loss"]), result.num_examples))
            if self.refiner:
                self.refiner.learn(groups["model"], self.losses[-1][0])

    def finalise(self, server_round: int) -> tuple[Parameters | None, Metrics]:
        """The round's new model; None, and the old one stays, when nothing was trained.

        Raises
        ------
        UserError
            If it has NaN or infinite values, though no client's had: w_t stays.
        """
        self.add_costs()
        if self.average.weight == 0:
            return None, self.metrics
        mean = self.average.mean()
        model = self.refine(self.server_step(mean), server_round)
        if not is_finite(model):
            raise UserError(
                f"round {server_round}: the server's step has made NaN or infinite values of sound "
                "models: lower its learning rate (server-lr, scaffold-server-lr)"
            )
        self.model = model
        self.kept.close(server_round)
        self.parameters = self.serialise({})
        self.account()
        self.measure(mean)
        return self.parameters, self.metrics

    # ---- Flower's interface

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """The initial model, a function of the seed."""
        return self.parameters

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Messages for the clients sampled in this round, in partition order."""
        messages = self.start_round(server_round, parameters, client_manager)
        return [(self.roster[partition], ins) for partition, ins in messages.items()]

    def start_round(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> dict[int, FitIns]:
        """Partition → message of this round's training, after the method's `before_fit`."""
        if not self.roster:
            self.enrol(client_manager)
        if parameters is not self.parameters:
            self.adopt(parameters)
        if self.attempt == 0:
            self.open_round()
        self.renew(client_manager)
        if self.attempt == 0:
            if server_round == 1:
                self.prepare()
            self.before_fit(server_round)
        federation = self.federation
        key = (federation.seed, server_round, self.attempt)
        avoid = self.failed if self.attempt else ()
        sampled = sample_clients(self.roster, federation.fraction_fit, key, avoid)
        self.sampled, self.measured = len(sampled), self.is_evaluated(server_round)
        self.clear()
        return self.messages(sampled, "train", server_round)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, Metrics]:
        """Fold a whole list, whatever its order, and finalise."""
        for _, result in sorted(results, key=lambda r: int(r[1].metrics["partition-id"])):
            partition = int(result.metrics["partition-id"])
            if self.by_reference:
                result.parameters = hold(result.parameters)
            self.fold(Reply(partition, result, "", 0, nbytes(result.parameters)))
        return self.finalise(server_round)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Nothing: the server has the test set."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, Metrics]:
        """Nothing to aggregate."""
        return None, {}

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, Metrics] | None:
        """Loss and accuracy of the global model on the test set, every ``evaluate-every``."""
        if not self.is_evaluated(server_round):
            return None
        self.flat.load(self.model)
        loss, accuracy = self.evaluator(self.flat.module)
        metrics: Metrics = {"server/test_accuracy": accuracy, "server/test_loss": loss}
        if self.refiner and self.refiner.refined is not None:
            metrics["refined/test_accuracy"] = self.refined_accuracy(self.refiner.refined, accuracy)
        return loss, metrics

    # ---- checkpoints

    def checkpoint(self, server_round: int) -> Checkpoint:
        """All that is needed to go on after a round."""
        arrays, scalars = self.state()
        return Checkpoint(server_round, self.run, self.model, arrays, scalars)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.model = checkpoint.model
        self.parameters = self.serialise({})
        self.settled = checkpoint.round
        self.restore(checkpoint.arrays, checkpoint.scalars)

    def settle(self, server_round: int) -> None:
        """Rounds up to this one will not be repeated."""
        self.settled = server_round
        self.kept.settle()

    # ---- tools

    def is_evaluated(self, server_round: int) -> bool:
        """Whether a round's result is measured: every ``evaluate-every``, and the last."""
        every, last = self.config.output.evaluate_every, self.federation.num_server_rounds
        return server_round % every == 0 or server_round == last

    def enrol(self, client_manager: ClientManager) -> None:
        """Wait for the federation."""
        probe = Probe(self.federation.transport)
        expected = self.federation.num_clients
        all_see = self.roster.gather(client_manager, expected, probe.question)
        self.by_reference = probe.decide(all_see)
        if self.by_reference:
            log(INFO, "models travel through shared memory")
            self.parameters = self.serialise({})
        self.say_why_silent()

    def renew(self, client_manager: ClientManager) -> None:
        """Look for nodes that came in the place of others."""
        for partition in self.roster.renew(client_manager):
            self.count("clients/joined", 1)
            self.welcome(partition)

    def adopt(self, parameters: Parameters) -> None:
        """Take over a model that came from outside."""
        model = from_parameters(hold(parameters), self.flat.layout)["model"]
        self.model = {kind: vector.copy() for kind, vector in model.items()}
        self.parameters = parameters

    def clear(self) -> None:
        """An empty average, for a round or another attempt at it."""
        self.open_sums()
        self.kept.open()
        if self.refiner:
            self.refiner.clear(self.transductive_set(), self.pool_version)
