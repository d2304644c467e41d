"""A part of a client's images that it never trains on."""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def hold_out(
    indices: Indices, labels: Indices, fraction: float, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Split a client's samples by class, so that both parts have the classes in like shares.

    A class's last image is always trained on: a client with single images holds out fewer than
    the fraction says.

    Parameters
    ----------
    indices : int64 (n,)
        The client's samples.
    labels : int64 (n,)
        Their classes.
    fraction : float
        In [0, 1): the share to hold out.
    generator : numpy.random.Generator
        The only source of randomness.

    Returns
    -------
    train, test : int64
        Disjoint, together ``indices``, each in their order.
    """
    chosen = np.zeros(len(indices), dtype=bool)
    classes, counts = np.unique(labels, return_counts=True)
    for label, count in zip(classes, quotas(counts, fraction, generator), strict=True):
        places = np.flatnonzero(labels == label)
        chosen[generator.permutation(places)[:count]] = True
    return indices[~chosen], indices[chosen]


def quotas(counts: Indices, fraction: float, generator: np.random.Generator) -> Indices:
    """How many of each class to hold out: largest remainders up to the rounded total.

    Equal remainders are served in random order, or the first classes would always win.
    """
    exact = counts * fraction
    taken = np.minimum(np.floor(exact), counts - 1).astype(np.int64)
    open_places = round(fraction * int(counts.sum())) - int(taken.sum())
    order = generator.permutation(len(counts))
    order = order[np.argsort(-(exact - taken)[order], kind="stable")]
    for i in order[taken[order] < counts[order] - 1][: max(0, open_places)]:
        taken[i] += 1
    return taken
