"""Partitions for one kind of skew: shards, quantity, balanced Dirichlet, pathological, by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsyn_flwr.data.library_partitioner import Indices, run
from fedsyn_flwr.errors import UserError

SIZES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "linear": lambda ids: ids,
    "square": np.square,
    "exponential": np.exp,
}
"""Scheme → how the size grows with the client's number, counted from 1."""


def shards(labels: NDArray[Any], num_clients: int, per_client: int, seed: int) -> list[Indices]:
    """Cut the rows, sorted by label, into K·s shards and deal s of them to each client.

    McMahan et al. 2017 (arXiv 1602.05629). The draw is that of flwr-datasets' ShardPartitioner
    where K·s divides N; otherwise that one leaves the rest out, and here shards differ by one row.

    Raises
    ------
    UserError
        If there are fewer rows than shards.
    """
    n, count = len(labels), num_clients * per_client
    if per_client < 1 or count > n:
        raise UserError(
            f"shards-per-client = {per_client} x {num_clients} clients are {count} shards of {n} "
            f"samples; choose 1 to {n // num_clients}"
        )
    cut = np.array_split(np.argsort(labels, kind="stable"), count)
    dealt = np.random.default_rng(seed).permutation(count).reshape(num_clients, per_client)
    return [np.concatenate([cut[shard] for shard in mine]) for mine in dealt]


def by_size(n: int, num_clients: int, scheme: str, rng: np.random.Generator) -> list[Indices]:
    """Sizes that grow with the client's number, rows at random; cut by flwr-datasets.

    Raises
    ------
    UserError
        If the first clients would be left without a row.
    """
    from flwr_datasets import partitioner

    largest = most_clients(n, SIZES[scheme])
    if num_clients > largest:
        raise UserError(
            f"partition {scheme!r}: {n} samples leave some of {num_clients} clients without any; "
            f"choose at most {largest} clients"
        )
    kinds = {
        "linear": partitioner.LinearPartitioner,
        "square": partitioner.SquarePartitioner,
        "exponential": partitioner.ExponentialPartitioner,
    }
    order = rng.permutation(n)  # the partitioner cuts the rows in their given order
    return [order[part] for part in run(kinds[scheme](num_clients), num_clients, np.arange(n))]


def most_clients(n: int, size: Callable[[NDArray[Any]], NDArray[Any]]) -> int:
    """How many clients can have a row each of n, where their sizes grow as `size` says.

    Rounded as in flwr-datasets, which cuts every size but the last down.
    """
    clients = 1
    while True:
        units = size(np.linspace(1, clients + 1, clients + 1))
        if int(units[0] / units.sum() * n) < 1:
            return clients
        clients += 1


def dirichlet_balanced(
    labels: NDArray[Any], num_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Equal sizes (within one row), each client with a class mixture of its own.

    The mixture is one draw from Dirichlet(alpha) over the classes. As in the code of FedDyn (Acar
    et al. 2021, arXiv 2111.04263), rows are dealt one at a time to clients in a random order, so
    that all of them, not the last ones, bear what is left: a class that has run out is struck from
    every mixture. What remains of a mixture is again one from Dirichlet(alpha). No row is left out.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    n = len(codes)
    mixtures = log_dirichlet(alpha, (num_clients, len(classes)), rng)
    turns, draws = rng.permutation(np.arange(n) % num_clients), rng.random(n)
    dealt = draw_classes(mixtures, np.bincount(codes), turns, draws)
    # Which of a class's rows goes to which of its turns is drawn as well.
    owner = np.empty(n, dtype=np.int64)
    for c in range(len(classes)):
        owner[rng.permutation(np.flatnonzero(codes == c))] = turns[dealt == c]
    return members(owner, num_clients)


def log_dirichlet(
    alpha: float, shape: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Logarithms, up to a constant per row, of a draw from Dirichlet(alpha) for each row of (K, C).

    The shares themselves are 0 in floating point where alpha is small, and nothing would be left
    of a mixture whose class has run out. Gamma(a) is Gamma(a + 1) · U^(1/a) (Stuart 1962).
    """
    alpha = max(alpha, 1e-300)  # below it the quotient is infinite
    grown, uniform = rng.standard_gamma(alpha + 1, shape), 1 - rng.random(shape)
    return np.log(grown) + np.log(uniform) / alpha


def draw_classes(
    mixtures: NDArray[Any], left: NDArray[Any], turns: NDArray[Any], draws: NDArray[Any]
) -> Indices:
    """A class for every turn (N,), by its client's log-mixture (K, C), none more often than `left`.

    `draws` (N,) are uniform in [0, 1).
    """
    left, steps = left.copy(), _steps(mixtures, left)
    dealt = np.empty(len(turns), dtype=np.int64)
    for i, (client, draw) in enumerate(zip(turns, draws, strict=True)):
        c = dealt[i] = steps[client].searchsorted(draw, side="right")
        left[c] -= 1
        if not left[c] and i + 1 < len(turns):
            steps = _steps(mixtures, left)
    return dealt


def _steps(mixtures: NDArray[Any], left: NDArray[Any]) -> NDArray[Any]:
    """Cumulated mixtures over the classes with rows left, (K, C), each ending in exactly 1."""
    among = np.where(left > 0, mixtures, -np.inf)
    steps = np.exp(among - among.max(1, keepdims=True)).cumsum(1)
    ending: NDArray[Any] = steps / steps[:, -1:]
    return ending


def pathological(
    labels: NDArray[Any], num_clients: int, per_client: int, rng: np.random.Generator
) -> list[Indices]:
    """Client k holds the classes k … k+c-1, counted round; rows at random.

    flwr-datasets' PathologicalPartitioner in its deterministic mode.

    Raises
    ------
    UserError
        If a class would fall to nobody, or have fewer rows than clients that hold it.
    """
    from flwr_datasets.partitioner import PathologicalPartitioner

    _check_pathological(labels, num_clients, per_client)
    order = rng.permutation(len(labels))
    partitioner = PathologicalPartitioner(
        num_clients, "key", per_client, "deterministic", shuffle=False
    )
    return [order[part] for part in run(partitioner, num_clients, labels[order])]


def _check_pathological(labels: NDArray[Any], num_clients: int, per_client: int) -> None:
    classes, rows = np.unique(labels, return_counts=True)
    present = len(classes)
    if not 1 <= per_client <= present:
        raise UserError(
            f"classes-per-client = {per_client} must be 1 to {present}, the classes there"
        )
    if num_clients + per_client - 1 < present:
        raise UserError(
            f"partition 'pathological': classes-per-client = {per_client} over {num_clients} "
            f"clients leaves some of {present} classes to nobody; choose at least "
            f"{present - num_clients + 1} classes per client"
        )
    first = np.arange(num_clients)[:, None] + np.arange(per_client)
    holders = np.bincount(first.ravel() % present, minlength=present)
    for c in np.flatnonzero(holders > rows)[:1]:
        raise UserError(
            f"partition 'pathological': class {classes[c]} has {rows[c]} samples for the "
            f"{holders[c]} clients that are to hold it; choose fewer clients or classes per client"
        )


def by_hand(n: int, num_clients: int, clients: ArrayLike | None) -> list[Indices]:
    """The rows of each client, as given: `clients` (N,) holds its number, 0..K-1, for every row.

    Raises
    ------
    UserError
        If a row has no client, or one that is not there.
    """
    owner = np.asarray([] if clients is None else clients)
    if len(owner) != n:
        raise UserError("partition 'csv' needs a client for every row; set partition-file")
    outside = np.flatnonzero((owner < 0) | (owner >= num_clients))
    if len(outside):
        raise UserError(
            f"partition 'csv': row {outside[0]} is given to client {owner[outside[0]]}; "
            f"there are clients 0 to {num_clients - 1}"
        )
    return members(owner, num_clients)


def members(owner: NDArray[Any], num_clients: int) -> list[Indices]:
    """The rows of each of K clients, from the client (N,) of every row; sorted, perhaps empty."""
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=num_clients))
    return np.split(order, ends[:-1])
