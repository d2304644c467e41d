"""The training that a federation is compared with: all clients' samples in one place.

Weight divergence (Zhao et al., arXiv 1806.00582; MrTF's Fig. 3) is the distance between the two. A
simulation can measure it; where clients' data stay with them nobody can.
"""

from dataclasses import replace

import torch
from torch.nn import functional as F

from fedsyn_flwr.client.training import Batch, Loss, PlainHooks, train_local
from fedsyn_flwr.client.worker import Worker
from fedsyn_flwr.config import Config, TrainConfig
from fedsyn_flwr.data.own import SCHEME
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.rng import torch_generator
from fedsyn_flwr.server.requests import sample_clients


def train_centrally(config: Config) -> FlatModel:
    """Train the run's initial model on what its clients had, round by round, without a federation.

    A round is the local epochs over the samples of that round's clients S, all together, in
    batches |S| times as large: as many steps as a client of average size makes, each with the
    gradient that the clients would have made together. Plain cross-entropy, the run's optimiser,
    as new in every round as the clients' is. With one client it is FedAvg, bit for bit.

    Parameters
    ----------
    config : Config
        A simulated run's, with ``num-clients`` as it was.

    Returns
    -------
    FlatModel
        The trained model, on the run's device.

    Raises
    ------
    UserError
        If the configuration does not say who has what.
    """
    check(config)
    federation, train = config.federation, config.train
    worker = Worker(config, federation.num_clients)
    for t in range(1, federation.num_server_rounds + 1):
        key = (federation.seed, t, 0)
        clients = sample_clients(range(federation.num_clients), federation.fraction_fit, key)
        one_round(worker, clients, replace(train, batch_size=len(clients) * train.batch_size), t)
    return worker.flat


def check(config: Config) -> None:
    """Refuse a configuration that does not say who has what."""
    if config.data.partition == SCHEME or not config.federation.num_clients:
        raise UserError(
            "no central model without the clients' data: give runs of a simulation, not of nodes "
            f'with their own (partition = "{SCHEME}"), with num-clients in config.json'
        )


def one_round(worker: Worker, clients: list[int], settings: TrainConfig, number: int) -> None:
    """E epochs over these clients' samples; sorted, so that it does not matter whose they are."""
    samples = torch.cat([worker.rows(client) for client in clients]).sort().values
    seed = worker.settings.federation.seed
    augmentation = torch_generator(seed, number, 0, "augmentation")

    def loss(batch: Batch) -> Loss:
        value = F.cross_entropy(worker.flat.module(batch.x), batch.y)
        return Loss(value, value)

    train_local(
        worker.flat,
        samples,
        PlainHooks(lambda chosen: worker.fetch(chosen, augmentation), loss),
        settings,
        seed=seed,
        key=(number, 0),
    )
