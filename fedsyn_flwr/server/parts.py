"""The parts that a strategy holds, built from the configuration in this one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fedsyn_flwr.config import Config
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.privacy.dp import Accountant
from fedsyn_flwr.server import refinement, server_optimizer
from fedsyn_flwr.server.aggregator import Aggregator
from fedsyn_flwr.server.client_versions import ClientVersions
from fedsyn_flwr.server.codec import MessageCodec
from fedsyn_flwr.server.evaluation import Evaluator
from fedsyn_flwr.server.federated_evaluation import FederatedEvaluation
from fedsyn_flwr.server.refinement import Refiner
from fedsyn_flwr.server.roster import Roster
from fedsyn_flwr.server.round_record import RoundRecord
from fedsyn_flwr.server.server_optimizer import ServerOptimizer
from fedsyn_flwr.server.synthetic_pool import SyntheticPool


class Keeper(Protocol):
    """A part with something to remember from round to round."""

    def state(self) -> tuple[Group, dict[str, Any]]:
        """Arrays and JSON values for a checkpoint, under names of its own."""

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """Take back what `state` gave, out of what all parts gave."""


class Presets(Protocol):
    """What a method brings, as attributes of its strategy class."""

    server_optimizer: str
    refinement: str
    makes_pool: bool
    soft_labels: bool


@dataclass(frozen=True)
class Parts:
    """All that a strategy is made of.

    Attributes
    ----------
    config : Config
        The run's configuration.
    flat : FlatModel
        The server's model: initial weights, later a place to evaluate and refine in.
    evaluator : Evaluator
        The test set.
    codec, aggregator, server_optimizer, refiner, accountant, record, versions, roster, pool, tests
        See their classes; no refiner without a refinement, an empty pool where nobody makes one.
    """

    config: Config
    flat: FlatModel
    evaluator: Evaluator
    codec: MessageCodec
    aggregator: Aggregator
    server_optimizer: ServerOptimizer
    refiner: Refiner | None
    accountant: Accountant
    record: RoundRecord
    versions: ClientVersions
    roster: Roster
    pool: SyntheticPool
    tests: FederatedEvaluation

    @classmethod
    def build(
        cls, config: Config, presets: Presets, flat: FlatModel, evaluator: Evaluator, run: str
    ) -> Parts:
        """The parts of a run.

        Parameters
        ----------
        config : Config
            The run's configuration.
        presets : type
            The method's strategy class.
        flat : FlatModel
            The initial model.
        evaluator : Evaluator
            The test set.
        run : str
            Names the run's state on the nodes.

        Raises
        ------
        UserError
            Where keys do not fit the method.
        """
        federation, record, versions = config.federation, RoundRecord(), ClientVersions()
        rule = server_optimizer.chosen(config.server, presets.server_optimizer)
        data, classes = evaluator.data, flat.module.num_classes
        return cls(
            config=config,
            flat=flat,
            evaluator=evaluator,
            codec=MessageCodec(run, flat.layout, versions),
            aggregator=Aggregator(federation.weighting, federation.max_client_share),
            server_optimizer=ServerOptimizer(rule),
            refiner=refinement.chosen(config, presets.refinement, presets.makes_pool, flat),
            accountant=Accountant(config.privacy, federation.weighting == "uniform"),
            record=record,
            versions=versions,
            roster=Roster(federation.node_timeout, data.shape),
            pool=SyntheticPool(data, classes, config, record, presets.soft_labels),
            tests=FederatedEvaluation(config, classes, record),
        )

    def state(self) -> tuple[Group, dict[str, Any]]:
        """What all of them remember."""
        arrays: Group = {}
        scalars: dict[str, Any] = {}
        for part in self.keepers():
            more, said = part.state()
            arrays, scalars = {**arrays, **more}, {**scalars, **said}
        return arrays, scalars

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """Give each back what it remembered."""
        for part in self.keepers():
            part.restore(arrays, scalars)

    def keepers(self) -> list[Keeper]:
        """Those that have something to remember."""
        found: list[Keeper] = [self.server_optimizer, self.accountant, self.versions, self.pool]
        return [*found, self.refiner] if self.refiner else found
