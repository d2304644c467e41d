"""Who holds which rows: partitions as index arrays, drawn on labels only."""

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsyn_flwr.data import partition_skews as skews
from fedsyn_flwr.data.library_partitioner import Indices, run
from fedsyn_flwr.errors import UserError

SCHEMES = (
    "iid",
    "dirichlet",
    "classes",
    "natural",
    "shards",
    *skews.SIZES,
    "dirichlet-balanced",
    "pathological",
    "csv",
)


def make_partitions(
    labels: ArrayLike,
    num_clients: int,
    scheme: str,
    *,
    seed: int,
    dirichlet_alpha: float = 0.1,
    classes_per_client: int = 2,
    shards_per_client: int = 2,
    groups: ArrayLike | None = None,
    min_size: int = 0,
) -> list[Indices]:
    """Split the rows over the clients.

    Parameters
    ----------
    labels : int (N,)
        Class of every row.
    num_clients : int
        K, 1 <= K <= N.
    scheme : str
        One of ``SCHEMES``:

        - iid: sizes equal within one row.
        - dirichlet: every class is spread over the clients by its own draw from Dirichlet(alpha)
          (Yurochkin et al. 2019). Drawn by flwr-datasets with a minimum size of 0, so once: with
          its default minimum of 10 it redraws eleven times and gives up at small alpha.
        - classes: each client holds `classes_per_client` classes. flwr-datasets' "pathological"
          partitioner (first class dealt, the others random) where that is complete and quick;
          our own balanced dealing (:func:`_deal_classes`) where it would leave classes unused
          (fewer clients than classes), draw by rejection for long (more than half of the classes
          per client), or give up (a class with fewer rows than holders; then some clients hold
          fewer classes).
        - natural: whole groups (writers) are dealt over the clients in a random order, so that
          the number of groups per client is equal within one.
        - shards: `shards_per_client` blocks of the rows sorted by label.
        - linear, square, exponential: iid, with sizes that grow with the client's number.
        - dirichlet-balanced: each client has its own class mixture, and all as many rows.
        - pathological: client k holds the classes k … k + `classes_per_client` - 1, counted round.
        - csv: `groups` holds every row's client.
    seed : int
        Same arguments, same partitions; which way is taken never depends on time. "csv" draws
        nothing.
    dirichlet_alpha : float
        > 0; small is skewed.
    classes_per_client : int
        1..number of classes present, and enough that the clients together hold all of them.
    shards_per_client : int
        At least 1, and with K of them at most N.
    groups : int (N,), optional
        Natural client of every row; needed for "natural", at least K distinct values, and for
        "csv", 0..K-1.
    min_size : int
        Clients below it take random rows from the largest ones (any scheme, so the scheme's
        property then holds only nearly). 0 allows empty clients.

    Returns
    -------
    list of int64 arrays
        K sorted index arrays, disjoint, together every row once.

    Raises
    ------
    UserError
        When an argument is out of its range.
    """
    y = np.asarray(labels)
    _check(y, num_clients, scheme, seed, min_size)
    rng = np.random.default_rng([seed, num_clients])
    draw: dict[str, Callable[[], list[Indices]]] = {
        "iid": lambda: _iid(y, num_clients, rng),
        "dirichlet": lambda: _dirichlet(y, num_clients, dirichlet_alpha, seed),
        "classes": lambda: _classes(y, num_clients, classes_per_client, seed, rng),
        "natural": lambda: _natural(y, num_clients, groups, rng),
        "shards": lambda: skews.shards(y, num_clients, shards_per_client, seed),
        "dirichlet-balanced": lambda: _dirichlet_balanced(y, num_clients, dirichlet_alpha, rng),
        "pathological": lambda: skews.pathological(y, num_clients, classes_per_client, rng),
        "csv": lambda: skews.by_hand(len(y), num_clients, groups),
    }
    sized = scheme in skews.SIZES
    parts = skews.by_size(len(y), num_clients, scheme, rng) if sized else draw[scheme]()
    return [np.sort(part) for part in _top_up(parts, min_size, rng)]


def label_table(
    labels: ArrayLike, partitions: list[Indices], num_classes: int
) -> NDArray[np.int64]:
    """Return the number of rows of each class at each client, int64 (K, num_classes)."""
    y = np.asarray(labels)
    rows = [np.bincount(y[part], minlength=num_classes) for part in partitions]
    return np.array(rows, dtype=np.int64).reshape(len(partitions), num_classes)


def _check(labels: NDArray[Any], num_clients: int, scheme: str, seed: int, min_size: int) -> None:
    n = len(labels)
    if scheme not in SCHEMES:
        raise UserError(f"partition = {scheme!r} is unknown; choose one of {', '.join(SCHEMES)}")
    if not 1 <= num_clients <= n:
        raise UserError(f"{num_clients} clients cannot share {n} samples; choose 1 to {n} clients")
    if seed < 0:
        raise UserError(f"seed {seed} is negative; give 0 or more")
    if not 0 <= min_size <= n // num_clients:
        raise UserError(
            f"min-partition-size {min_size} is impossible with {n} samples over {num_clients} "
            f"clients; choose 0 to {n // num_clients}"
        )


def _iid(labels: NDArray[Any], num_clients: int, rng: np.random.Generator) -> list[Indices]:
    from flwr_datasets.partitioner import IidPartitioner

    order = rng.permutation(len(labels))  # the partitioner cuts the rows in their given order
    return [order[part] for part in run(IidPartitioner(num_clients), num_clients, labels)]


def _dirichlet(labels: NDArray[Any], num_clients: int, alpha: float, seed: int) -> list[Indices]:
    from flwr_datasets.partitioner import DirichletPartitioner

    _check_alpha(alpha)
    partitioner = DirichletPartitioner(
        num_clients, "key", float(alpha), min_partition_size=0, shuffle=False, seed=seed
    )
    return run(partitioner, num_clients, labels)


def _dirichlet_balanced(
    labels: NDArray[Any], num_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    _check_alpha(alpha)
    return skews.dirichlet_balanced(labels, num_clients, alpha, rng)


def _check_alpha(alpha: float) -> None:
    if not (alpha > 0 and np.isfinite(alpha)):
        raise UserError(f"dirichlet-alpha = {alpha} must be a finite number above 0, e.g. 0.1")


def _classes(
    labels: NDArray[Any], num_clients: int, per_client: int, seed: int, rng: np.random.Generator
) -> list[Indices]:
    from flwr_datasets.partitioner import PathologicalPartitioner

    present = len(np.unique(labels))
    if not 1 <= per_client <= present:
        raise UserError(
            f"classes-per-client = {per_client} must be 1 to {present}, the classes there"
        )
    if per_client * num_clients < present:
        raise UserError(
            f"classes-per-client = {per_client} x {num_clients} clients leave some of {present} "
            f"classes to nobody; choose at least {-(-present // num_clients)} classes per client"
        )
    if num_clients < present or 2 * per_client > present:
        return _deal_classes(labels, num_clients, per_client, rng)
    partitioner = PathologicalPartitioner(
        num_clients, "key", per_client, "first-deterministic", shuffle=False, seed=seed
    )
    try:
        return run(partitioner, num_clients, labels)
    except ValueError:  # a class with fewer rows than holders
        return _deal_classes(labels, num_clients, per_client, rng)


def _deal_classes(
    labels: NDArray[Any], num_clients: int, per_client: int, rng: np.random.Generator
) -> list[Indices]:
    """Deal each client the classes with the fewest holders so far, ties broken at random.

    Bounded, and every class ends with the same number of holders within one, so all are used.
    """
    classes = np.unique(labels)
    holders: list[list[int]] = [[] for _ in classes]
    for client in range(num_clients):
        counts = [len(h) for h in holders] + rng.random(len(classes))
        for c in np.argsort(counts)[:per_client]:
            holders[c].append(client)
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    for c, clients in zip(classes, holders, strict=True):
        rows = rng.permutation(np.flatnonzero(labels == c))
        for client, share in zip(clients, np.array_split(rows, len(clients)), strict=True):
            parts[client].append(share)
    return [np.concatenate(shares) for shares in parts]


def _natural(
    labels: NDArray[Any], num_clients: int, groups: ArrayLike | None, rng: np.random.Generator
) -> list[Indices]:
    from flwr_datasets.partitioner import GroupedNaturalIdPartitioner

    if groups is None or len(np.asarray(groups)) != len(labels):
        raise UserError("partition 'natural' needs a column of groups; set natural-column")
    values, codes = np.unique(np.asarray(groups), return_inverse=True)
    if len(values) < num_clients:
        raise UserError(
            f"partition 'natural': {len(values)} groups cannot fill {num_clients} clients; "
            f"choose at most {len(values)} clients"
        )
    # The partitioner's own grouping cannot be asked for exactly K groups, so groups are dealt
    # here and it partitions by the client they fell to.
    client_of_group = rng.permutation(len(values)) % num_clients
    partitioner = GroupedNaturalIdPartitioner("key", group_size=1, sort_unique_ids=True)
    return run(partitioner, num_clients, client_of_group[codes])


def _top_up(parts: list[Indices], min_size: int, rng: np.random.Generator) -> list[Indices]:
    """Bring every part to `min_size` with random rows of the currently largest part.

    At most K·min_size moves; a donor never falls below `min_size`, since K·min_size <= N.
    """
    if min(len(part) for part in parts) >= min_size:
        return parts
    rows = [rng.permutation(part).tolist() for part in parts]
    largest = [(-len(part), k) for k, part in enumerate(rows)]
    heapq.heapify(largest)
    for part in rows:
        while len(part) < min_size:
            _, donor = heapq.heappop(largest)
            part.append(rows[donor].pop())
            heapq.heappush(largest, (-len(rows[donor]), donor))
    return [np.array(part, dtype=np.int64) for part in rows]
