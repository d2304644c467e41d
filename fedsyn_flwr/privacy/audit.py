"""The numbers of `similarity`, computed where the real images are."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedsyn_flwr.data import ResidentData, denormalise
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.privacy import similarity

View = Callable[[Tensor], Tensor]


def privacy_report(
    data: ResidentData,
    indices: Tensor,
    paired: Tensor,
    synthetic: Tensor,
    batch_size: int,
    observer: SplitModel | None = None,
) -> dict[str, float]:
    """What a client's synthetic images give away of its real ones.

    Parameters
    ----------
    data : ResidentData
        All images of the node.
    indices : Tensor
        All n real images of the client, int64 (n,).
    paired : Tensor
        Positions in ``indices`` of the images that the synthetic ones were made from, int64 (m,);
        (m, M) where each was made from M images.
    synthetic : Tensor
        As others get them, normalised, (m, C, H, W), m ≥ 1.
    batch_size : int
        Real images that are looked at at once.
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

    def pixels(x: Tensor) -> Tensor:
        return denormalise(x, data.mean, data.std)

    @torch.no_grad()
    def nearest(view: View) -> tuple[Tensor, Tensor]:
        pieces = indices.split(batch_size)
        return similarity.nearest(view(synthetic), (view(data.x(p)) for p in pieces), paired)

    where, found = nearest(lambda x: pixels(x).flatten(1))
    images, closest = pixels(synthetic), pixels(data.x(indices[where.cpu()]))
    each = paired.numel() // len(paired)
    numbers = similarity.likeness(
        images.repeat_interleave(each, dim=0), pixels(data.x(indices[paired.flatten()]))
    )
    numbers["privacy/nearest_distance"] = float(similarity.rms(images, closest).mean())
    numbers["privacy/reid_pixel"] = float(found.float().mean())
    numbers["privacy/reid_chance"] = each / len(indices)
    if observer is not None:
        numbers["privacy/reid_feature"] = float(
            nearest(observer.forward_features)[1].float().mean()
        )
    return numbers
