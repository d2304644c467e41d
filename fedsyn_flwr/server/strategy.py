"""The strategy every method starts from: FedAvg as a running sum, with places to plug in.

It is a plain `flwr.server.strategy.Strategy`: our server folds each reply as it arrives, Flower's
stock server hands the whole list to `aggregate_fit`, and both end in the same model.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from logging import INFO
from typing import Any

from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.instruction import PARTITION, TRAIN_LOSS
from fedsyn_flwr.messages.payload import (
    Groups,
    from_parameters,
    hold,
    is_finite,
    nbytes,
)
from fedsyn_flwr.messages.schema import like
from fedsyn_flwr.messages.transport import Probe
from fedsyn_flwr.models.flat_model import Vectors
from fedsyn_flwr.server.checkpoint import Checkpoint
from fedsyn_flwr.server.hooks import ServerHooks
from fedsyn_flwr.server.parts import Parts
from fedsyn_flwr.server.requests import Reply, answer_of, exchange, sample_clients
from fedsyn_flwr.server.round_record import Metrics
from fedsyn_flwr.server.update import Update, is_enough


class FedStrategy(ServerHooks, Strategy):
    """Federated averaging; other methods override the step that their paper changes.

    Parameters
    ----------
    parts : Parts
        What it holds; see there.

    Attributes
    ----------
    model : dict
        w_t, as vectors.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.config, self.federation = parts.config, parts.config.federation
        self.params: Any = parts.config.params
        self.flat, self.evaluator = parts.flat, parts.evaluator
        self.codec, self.record, self.roster = parts.codec, parts.record, parts.roster
        self.aggregator, self.optimizer = parts.aggregator, parts.server_optimizer
        self.refiner, self.accountant, self.pool = parts.refiner, parts.accountant, parts.pool
        self.versions, self.tests = parts.versions, parts.tests
        self.model = parts.flat.copy_vectors()
        self.parameters = self.codec.encode({"model": self.model})
        self.attempt = self.sampled = 0
        self.progress = lambda phase, done, total: None

    # ---- hooks that do something in every method

    def server_step(self, mean: Vectors) -> Vectors:
        """w_{t+1} of w_t and the clients' average: the server optimiser's step."""
        return self.optimizer.step(self.model, mean)

    def refine(self, model: Vectors, server_round: int) -> Vectors:
        """The server's own work on the new model: the refinement, where the run has one."""
        if self.refiner is None:
            return model
        refined = self.refiner.refine(self.model, model, server_round)
        self.record.add(self.refiner.metrics)
        self.record.spend("refinement", self.refiner.seconds)
        return refined

    # ---- what a method may use

    def ask_all(
        self, phase: str, server_round: int, with_model: bool = True, shown: str = ""
    ) -> Iterator[Update]:
        """Every client's sound answer to a phase of the method's own, in partition order.

        Progress is ``shown`` under the phase's name unless another is given.
        """
        start = time.perf_counter()
        messages = self.messages(self.roster, phase, server_round, with_model)
        progress = partial(self.progress, shown or phase)
        for reply in exchange(self.roster, messages, self.federation.round_timeout, progress):
            update = self.open(reply, phase)
            if update is not None:
                yield update
        self.record.spend(phase, time.perf_counter() - start)

    def need(self, answered: int, what: str, advice: Iterable[str] = ()) -> None:
        """End the run where too few clients took part in what comes once.

        Raises
        ------
        UserError
            With the reasons, and the advice.
        """
        if not is_enough(answered, len(self.roster), self.federation):
            reasons = "; ".join([*dict.fromkeys(self.record.reasons), *advice])
            raise UserError(f"{answered} of {len(self.roster)} clients {what}: {reasons}")

    # ---- a round

    def start_round(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> dict[int, FitIns]:
        """Partition → message of this round's training, after the method's `before_fit`."""
        if not self.roster:
            self.enrol(client_manager)
        if parameters is not self.parameters:
            self.adopt(parameters)
        if self.attempt == 0:
            self.record.open()
        self.renew(client_manager)
        if self.attempt == 0:
            if server_round == 1:
                self.prepare()
            self.before_fit(server_round)
        federation = self.federation
        key = (federation.seed, server_round, self.attempt)
        avoid = self.record.failed if self.attempt else ()
        sampled = sample_clients(self.roster, federation.fraction_fit, key, avoid)
        self.open_sums(len(sampled), measured=self.is_evaluated(server_round))
        return self.messages(sampled, "train", server_round)

    def open_sums(self, sampled: int, measured: bool) -> None:
        """Empty sums, for a round or another attempt at it."""
        self.sampled = sampled
        self.aggregator.open(sampled, self.model if measured else None)
        self.versions.open()
        self.tests.clear(measured)
        if self.refiner:
            on_pool = self.config.refinement.transductive_set == "pool"
            images = self.pool.images() if on_pool else self.evaluator.data
            self.refiner.clear(images, self.pool.version)
        self.begin_attempt()

    def messages(
        self, partitions: Iterable[int], phase: str, server_round: int, with_model: bool = True
    ) -> dict[int, FitIns]:
        """Messages: the model, the pool where it is missing, the method's groups."""

        def extra(partition: int) -> Groups:
            pool = self.pool.missing(partition) if phase == "train" else None
            shared = {} if pool is None else {"synthetic": pool}
            return {**shared, **self.outgoing(phase, partition)}

        model: Groups = {"model": self.model} if with_model else {}
        plain = self.parameters if with_model else self.codec.encode({})
        version = self.pool.version
        measure = phase == "train" and self.tests.measured
        return self.codec.messages(
            partitions, phase, server_round, version, (model, plain), extra, measure
        )

    def open(self, reply: Reply, phase: str) -> Update | None:
        """A reply's answer to a phase, if it can be used."""
        model = like({"model": self.model}) if phase == "train" else {}
        update = self.codec.open(reply, {**model, **self.expected(phase)}, self.record)
        if update is not None and phase == "train" and not self.tests.sound(update):
            return None
        if update is not None:
            self.accountant.exposed |= update.groups.keys() != {"model"}
        return update

    def receive(self, reply: Reply) -> None:
        """Take one trained model into the round's sums; replies come in partition order."""
        update = self.open(reply, "train")
        if update is not None and self.take(update):
            self.sum_up(update)
            if self.versions.take(update.partition, update.metrics):
                self.record.count("clients/state_lost")
        if reply.result is None:
            self.pool.lost(reply.partition)
        else:
            self.pool.held(reply.partition)

    def take(self, update: Update) -> bool:
        """Give the method what is its; whatever fails there is this client's failure."""
        try:
            self.fold(update)
        except Exception as error:
            reason = f"its answer could not be used: {type(error).__name__}: {error}"
            self.record.reject(update.partition, reason)
            return False
        return True

    def sum_up(self, update: Update) -> None:
        """Add a trained model to the sums, unless its client has no samples."""
        if update.examples > 0:
            model, loss = update.groups["model"], float(update.metrics[TRAIN_LOSS])
            self.aggregator.add(model, update.examples, loss)
            self.tests.keep(update)
            if self.refiner:
                self.refiner.learn(model, loss)

    def finalise(self, server_round: int) -> tuple[Parameters | None, Metrics]:
        """The round's new model; None, and the old one stays, when nothing was trained.

        Raises
        ------
        UserError
            If it has NaN or infinite values, though no client's had: w_t stays.
        """
        self.record.close()
        if self.aggregator.empty:
            return None, self.record.metrics
        mean = self.aggregator.mean()
        model = self.refine(self.server_step(mean), server_round)
        if not is_finite(model):
            raise UserError(
                f"round {server_round}: the server's step has made NaN or infinite values of sound "
                "models: lower its learning rate (server-lr, scaffold-server-lr)"
            )
        self.model = model
        self.versions.close(server_round)
        self.parameters = self.codec.encode({"model": model})
        self.account()
        self.record.add({**self.aggregator.metrics(mean), **self.tests.own_figures()})
        self.after_round(server_round)
        return self.parameters, self.record.metrics

    def account(self) -> None:
        """Report what the round's noisy models have spent of the clients' privacy."""
        self.accountant.release(self.sampled, len(self.aggregator.losses))
        self.record.add(self.accountant.metrics(len(self.roster)))
        self.accountant.explain()

    def is_evaluated(self, server_round: int) -> bool:
        """Whether a round's result is measured: every ``evaluate-every``, and the last."""
        every, last = self.config.output.evaluate_every, self.federation.num_server_rounds
        return server_round % every == 0 or server_round == last

    # ---- who takes part

    def enrol(self, client_manager: ClientManager) -> None:
        """Wait for the federation."""
        probe = Probe(self.federation.transport)
        expected = self.federation.num_clients
        all_see = self.roster.gather(client_manager, expected, probe.question)
        self.codec.by_reference = probe.decide(all_see)
        if self.codec.by_reference:
            log(INFO, "models travel through shared memory")
            self.parameters = self.codec.encode({"model": self.model})
        self.accountant.explain()

    def renew(self, client_manager: ClientManager) -> None:
        """Look for nodes that came in the place of others; they have nothing of the run yet."""
        for partition in self.roster.renew(client_manager):
            self.record.count("clients/joined")
            self.pool.lost(partition)

    def adopt(self, parameters: Parameters) -> None:
        """Take over a model that came from outside."""
        model = from_parameters(hold(parameters), self.flat.layout)["model"]
        self.model = {kind: vector.copy() for kind, vector in model.items()}
        self.parameters = parameters

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

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, Metrics]:
        """Take in a whole list, whatever its order, and finalise."""
        for _, result in sorted(results, key=lambda r: int(r[1].metrics[PARTITION])):
            partition = int(result.metrics[PARTITION])
            if self.codec.by_reference:
                result.parameters = hold(result.parameters)
            self.receive(Reply(partition, result, "", 0, nbytes(result.parameters)))
        return self.finalise(server_round)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Messages for the clients that are to test the model, in partition order; none where
        they have no test images, or the round is not evaluated.
        """
        if not self.roster and self.tests.on:
            self.enrol(client_manager)
        messages = self.questions(server_round, parameters)
        return [(self.roster[partition], ins) for partition, ins in messages.items()]

    def questions(self, server_round: int, parameters: Parameters) -> dict[int, EvaluateIns]:
        """Partition → message of this round's evaluation by the clients."""
        self.tests.open()
        if not (self.tests.on and self.is_evaluated(server_round)):
            return {}
        asked, version = self.tests.sample(self.roster, server_round), self.pool.version
        messages = self.codec.messages(
            asked, "evaluate", server_round, version, ({}, parameters), lambda partition: {}
        )
        return {k: EvaluateIns(ins.parameters, ins.config) for k, ins in messages.items()}

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, Metrics]:
        """The loss over all samples, and the figures; None where nobody tested."""
        places = {proxy.cid: partition for partition, proxy in self.roster.items()}
        for proxy, result in results:
            self.tests.receive(Reply(places[proxy.cid], answer_of(result), "", 0, 0))
        metrics = self.tests.figures()
        return metrics.get("clients/test_loss"), dict(metrics)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, Metrics] | None:
        """Loss and accuracy of the global model on the test set, every ``evaluate-every``."""
        without = self.config.evaluation.server_data == "none"
        if without or not self.is_evaluated(server_round):
            return None
        loss, accuracy = self.tested(self.model)
        metrics: Metrics = {"server/test_accuracy": accuracy, "server/test_loss": loss}
        refined = self.refiner.refined if self.refiner else None
        if refined is not None:
            same = refined is self.model
            metrics["refined/test_accuracy"] = accuracy if same else self.tested(refined)[1]
        return loss, metrics

    def tested(self, model: Vectors) -> tuple[float, float]:
        """Loss and accuracy of a model on the test set."""
        self.flat.load(model)
        return self.evaluator(self.flat.module)

    # ---- checkpoints

    def checkpoint(self, server_round: int) -> Checkpoint:
        """All that is needed to go on after a round."""
        arrays, scalars = self.parts.state()
        own, said = self.state()
        return Checkpoint(
            server_round, self.codec.run, self.model, {**arrays, **own}, {**scalars, **said}
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.model = checkpoint.model
        self.parameters = self.codec.encode({"model": self.model})
        self.parts.restore(checkpoint.arrays, checkpoint.scalars)
        self.restore(checkpoint.arrays, checkpoint.scalars)
        self.versions.settle(checkpoint.round)
