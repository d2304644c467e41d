"""The numbers of `privacy`, computed where the real images are."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr import privacy
from fedsyn_flwr.data import denormalise
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.rng import torch_generator
from fedsyn_flwr.state import VersionedStore
from fedsyn_flwr.training import Batch, Loss, train_local
from fedsyn_flwr.worker import Worker, flat_model

View = Callable[[Tensor], Tensor]


def privacy_report(
    worker: Worker,
    indices: Tensor,
    paired: Tensor,
    synthetic: Tensor,
    observer: SplitModel | None = None,
) -> dict[str, float]:
    """What a client's synthetic images give away of its real ones.

    Parameters
    ----------
    worker : Worker
        Holds the data.
    indices : Tensor
        All n real images of the client, int64 (n,).
    paired : Tensor
        Positions in ``indices`` of the images that the synthetic ones were made from, int64 (m,);
        (m, M) where each was made from M images.
    synthetic : Tensor
        As others get them, normalised, (m, C, H, W), m ≥ 1.
    observer : SplitModel, optional
        An independent model in eval mode, for ``reid_feature``.

    Returns
    -------
    dict
        ``privacy/psnr_…`` and ``privacy/ssim_…`` (``mean``, ``p95``, ``max``) to the paired image,
        to each of them where there are M; ``privacy/nearest_distance``, the mean RMS pixel distance
        to the nearest real image; ``privacy/reid_pixel`` and ``privacy/reid_feature``, shares of
        images of whose n real ones none is nearer than a paired one; ``privacy/reid_chance`` = M/n.
    """
    data = worker.data

    def pixels(x: Tensor) -> Tensor:
        return denormalise(x, data.mean, data.std)

    @torch.no_grad()
    def nearest(view: View) -> tuple[Tensor, Tensor]:
        pieces = indices.split(worker.settings.output.eval_batch_size)
        return privacy.nearest(view(synthetic), (view(data.x(p)) for p in pieces), paired)

    where, found = nearest(lambda x: pixels(x).flatten(1))
    images, closest = pixels(synthetic), pixels(data.x(indices[where.cpu()]))
    each = paired.numel() // len(paired)
    numbers = privacy.likeness(
        images.repeat_interleave(each, dim=0), pixels(data.x(indices[paired.flatten()]))
    )
    numbers["privacy/nearest_distance"] = float(privacy.rms(images, closest).mean())
    numbers["privacy/reid_pixel"] = float(found.float().mean())
    numbers["privacy/reid_chance"] = each / len(indices)
    if observer is not None:
        numbers["privacy/reid_feature"] = float(
            nearest(observer.forward_features)[1].float().mean()
        )
    return numbers


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
        train_local(flat, indices, fetch, cross_entropy, settings, seed=seed, key=key)
        store.save(0, flat.vectors())
    else:
        flat.load(kept)
    return flat.module.eval().requires_grad_(False)
