"""An independent look at a client's images, for what they give away."""

from dataclasses import replace

from torch.nn import functional as F

from fedsyn_flwr.build import flat_model
from fedsyn_flwr.client.state import VersionedStore
from fedsyn_flwr.client.training import Batch, Loss, PlainHooks, train_local
from fedsyn_flwr.client.worker import Worker
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.rng import torch_generator


def train_observer(
    worker: Worker, partition: int, epochs: int, store: VersionedStore
) -> SplitModel:
    """A model that the synthesis never met: the report looks at images through its features.

    It has the run's architecture and training settings but other initial weights, and saw nothing
    besides the client's own images: whoever attacks this client can have no better one of its
    kind. On a client with one class its features are hardly more than random projections.

    Parameters
    ----------
    epochs : int
        Of local training, once per client and run; ``store`` keeps the result.
    """
    settings = replace(worker.settings.train, local_epochs=epochs)
    seed, key = worker.settings.federation.seed, (partition, "observer")
    flat = flat_model(
        worker.settings, worker.data.shape, worker.device, purpose=f"observer-{partition}"
    )

    def cross_entropy(batch: Batch) -> Loss:
        loss = F.cross_entropy(flat.module(batch.x), batch.y)
        return Loss(loss, loss)

    kept = store.load(0)
    if kept is None:
        g = torch_generator(seed, *key, "augmentation")
        indices = worker.rows(partition)
        fetch = lambda chosen: worker.fetch(chosen, g)  # noqa: E731
        train_local(flat, indices, PlainHooks(fetch, cross_entropy), settings, seed=seed, key=key)
        store.save(0, flat.vectors())
    else:
        flat.load(kept)
    return flat.module.eval().requires_grad_(False)
