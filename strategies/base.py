"""The strategy every method starts from: FedAvg as a running sum, with places to plug in.

It is a plain `flwr.server.strategy.Strategy`: our server folds each reply as it arrives, Flower's
stock server hands the whole list to `aggregate_fit`, and both end in the same model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from fedsyn_flwr.checkpoint import Checkpoint
from fedsyn_flwr.config import Config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.evaluation import Evaluator
from fedsyn_flwr.exchange import Reply, exchange, sample_clients
from fedsyn_flwr.flat import FlatModel
from fedsyn_flwr.payload import (
    Group,
    Groups,
    from_parameters,
    is_finite,
    nbytes,
    shapes,
    to_parameters,
)
from fedsyn_flwr.roster import Roster
from strategies.ledger import Metrics
from strategies.workshop import Workshop

Progress = Callable[[str, int, int], None]


class FedStrategy(Workshop, Strategy):
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
        self.settled = 0
        self.pool_version = 0
        self.equip()
        self.attempt = self.sampled = 0
        self.progress: Progress = lambda phase, done, total: None
        self.clear()

    # ---- where a method plugs in

    def prepare(self) -> None:
        """Before round 1's training, with all clients known; counted as part of that round."""

    def welcome(self, partition: int) -> None:
        """Another node, which has nothing of the run yet, stands for this client from now on."""

    def before_fit(self, server_round: int) -> None:
        """Before a round's training, e.g. a synthesis by all clients."""

    def outgoing(self, partition: int) -> Groups:
        """Groups that this client gets beside the model; the same objects where shared."""
        return {}

    def enclosed(self, phase: str, partition: int) -> Groups:
        """Groups that go with a message of a phase: those of `outgoing` with ``train``."""
        return self.outgoing(partition) if phase == "train" else {}

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

    def absorb(self, result: FitRes, groups: Groups) -> None:
        """Add a sound reply to the round's sums."""
        weight = self.weight_of(result)
        if weight > 0:
            self.count_in(groups["model"], weight)
            self.losses.append((float(result.metrics["train-loss"]), result.num_examples))
            if self.refiner:
                self.refiner.learn(groups["model"], self.losses[-1][0])

    def finalise(self, server_round: int) -> tuple[Parameters | None, Metrics]:
        """The round's new model; None, and the old one stays, when nothing was trained."""
        self.add_costs()
        if self.average.weight == 0:
            return None, self.metrics
        mean = self.average.mean()
        self.model = self.refine(self.server_step(mean), server_round)
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
        self.clear()
        federation = self.federation
        key = (federation.seed, server_round, self.attempt)
        sampled = sample_clients(self.roster, federation.fraction_fit, key)
        self.sampled = len(sampled)
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
        every, last = self.config.output.evaluate_every, self.federation.num_server_rounds
        if server_round % every and server_round != last:
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

    # ---- tools

    def enrol(self, client_manager: ClientManager) -> None:
        """Wait for the federation."""
        self.roster.gather(client_manager, self.federation.num_clients)
        self.say_why_silent()

    def renew(self, client_manager: ClientManager) -> None:
        """Look for nodes that came in the place of others."""
        for partition in self.roster.renew(client_manager):
            self.count("clients/joined", 1)
            self.welcome(partition)

    def adopt(self, parameters: Parameters) -> None:
        """Take over a model that came from outside."""
        self.model = from_parameters(parameters, self.flat.layout)["model"]
        self.parameters = parameters

    def clear(self) -> None:
        """An empty average, for a round or another attempt at it."""
        self.open_sums()
        if self.refiner:
            self.refiner.clear(self.transductive_set())

    def messages(
        self, partitions: Iterable[int], phase: str, server_round: int, with_model: bool = True
    ) -> dict[int, FitIns]:
        """A message for each client; clients that get the same arrays share their bytes."""
        plain = self.parameters if with_model else self.serialise({}, with_model)
        shared: dict[tuple[int, ...], Parameters] = {(): plain}
        config: dict[str, Scalar] = {
            "run": self.run,
            "round": server_round,
            "phase": phase,
            "settled": min(self.settled, server_round - 1),
            "pool": self.pool_version,
        }
        messages = {}
        for partition in sorted(partitions):
            extra = self.enclosed(phase, partition)
            key = tuple(id(group) for group in extra.values())
            if key not in shared:
                shared[key] = self.serialise(extra, with_model)
            messages[partition] = FitIns(shared[key], {**config, "partition": partition})
        return messages

    def ask_all(
        self, phase: str, server_round: int, with_model: bool = True, shown: str = ""
    ) -> Iterable[Reply]:
        """Every client's reply to a phase of the method's own, in partition order.

        Progress is ``shown`` under the phase's name unless another is given.
        """
        start = time.perf_counter()
        messages = self.messages(self.roster, phase, server_round, with_model)
        progress = partial(self.progress, shown or phase)
        yield from exchange(self.roster, messages, self.federation.round_timeout, progress)
        self.spent(phase, time.perf_counter() - start)

    def accept(self, reply: Reply) -> tuple[FitRes | None, Groups]:
        """Count a reply's bytes and unpack it; failures are kept with their reason."""
        self.count("bytes/down", reply.down)
        self.count("bytes/up", reply.up)
        if reply.result is None:
            self.fail(reply.partition, reply.reason)
            return None, {}
        try:
            groups = from_parameters(reply.result.parameters, self.flat.layout)
        except UserError as error:
            self.reject(reply.partition, str(error))
            return None, {}
        problem = self.problem_with(groups)
        if problem:
            self.reject(reply.partition, problem)
            return None, {}
        self.accountant.exposed |= groups.keys() != {"model"}
        self.costs.add(reply.result.metrics)
        return reply.result, groups

    def problem_with(self, groups: Groups) -> str:
        """Why an answer cannot be used; empty if it can."""
        for name, group in groups.items():
            if not is_finite(group):
                return f"its {name} has NaN or infinite values"
        own, sent = shapes(self.model), shapes(groups.get("model", self.model))
        return "" if own == sent else f"its model has vectors {sent}, expected {own}"

    def weight_of(self, result: FitRes) -> float:
        """p_k: the client's samples, or 1 where it has any and weighting is uniform."""
        uniform = self.federation.weighting == "uniform"
        return float(bool(result.num_examples)) if uniform else float(result.num_examples)

    def serialise(self, extra: Groups, with_model: bool = True) -> Parameters:
        """The global model and extra groups as they travel."""
        model = {"model": self.model} if with_model else {}
        return to_parameters({**model, **extra}, self.flat.layout)
