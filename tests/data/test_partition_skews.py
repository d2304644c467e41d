"""Shards, quantity skew, balanced Dirichlet, pathological, by hand: complete, and as they say."""

import time
from typing import Any

import datasets
import numpy as np
import pytest
from flwr_datasets import partitioner as library
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsyn_flwr.data.partition import label_table, make_partitions
from fedsyn_flwr.data.partition_skews import SIZES, draw_classes, log_dirichlet, most_clients
from fedsyn_flwr.errors import UserError

DRAWN = ("shards", *SIZES, "dirichlet-balanced", "pathological")
LABELS = np.random.default_rng(0).integers(0, 10, 600)


def fitting(scheme: str, n: int, classes: int, wish: int) -> tuple[int, dict[str, Any]]:
    """A number of clients near the wish, and options, that the scheme allows."""
    clients = 1 + wish % n
    if scheme in SIZES:
        return min(clients, most_clients(n, SIZES[scheme])), {}
    if scheme == "shards":
        return clients, {"shards_per_client": 1 + wish % (n // clients)}
    if scheme == "pathological":  # every class has a row for each client
        clients = 1 + wish % (n // classes)
        return clients, {"classes_per_client": max(1 + wish % classes, classes - clients + 1)}
    return clients, {"dirichlet_alpha": [1e-6, 0.01, 0.3, 100.0, 1e300][wish % 5]}


@settings(max_examples=100, deadline=None)
@given(
    scheme=st.sampled_from(DRAWN),
    classes=st.integers(1, 12),
    rows=st.integers(1, 25),
    wish=st.integers(0, 10_000),
    min_size=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
def test_every_row_once_and_the_same_again(
    scheme: str, classes: int, rows: int, wish: int, min_size: int, seed: int
) -> None:
    n = classes * rows
    labels = np.random.default_rng(seed).permutation(np.arange(n) % classes)
    clients, options = fitting(scheme, n, classes, wish)
    options |= {"seed": seed, "min_size": min(min_size, n // clients)}
    parts = make_partitions(labels, clients, scheme, **options)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert all(p.dtype == np.int64 and np.all(np.diff(p) > 0) for p in parts)
    assert min(map(len, parts)) >= options["min_size"]
    again = make_partitions(labels, clients, scheme, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("scheme", DRAWN)
def test_another_seed_gives_another_partition(scheme: str) -> None:
    one, two = (make_partitions(LABELS, 6, scheme, seed=s, classes_per_client=6) for s in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(("clients", "per_client"), [(10, 2), (20, 3), (1, 600), (100, 6)])
def test_shards_are_the_draw_of_flwr_datasets(clients: int, per_client: int, seed: int) -> None:
    theirs = library.ShardPartitioner(clients, "label", per_client, shuffle=False, seed=seed)
    theirs.dataset = datasets.Dataset.from_dict({"label": LABELS, "row": range(600)})
    ours = make_partitions(LABELS, clients, "shards", seed=seed, shards_per_client=per_client)
    for k, part in enumerate(ours):
        assert sorted(theirs.load_partition(k)["row"]) == part.tolist()


def test_shards_leave_no_row_out_where_they_do_not_divide() -> None:
    parts = make_partitions(LABELS, 7, "shards", seed=0, shards_per_client=2)
    assert set(map(len, parts)) <= {84, 85, 86}
    assert sum(map(len, parts)) == 600
    assert (label_table(LABELS, parts, 10) > 0).sum(1).max() <= 4  # two blocks, two classes each


@pytest.mark.parametrize("scheme", SIZES)
def test_sizes_grow_as_the_name_says_and_labels_are_mixed(scheme: str) -> None:
    labels = np.sort(np.random.default_rng(0).integers(0, 3, 20_000))
    parts = make_partitions(labels, 5, scheme, seed=0)
    units = SIZES[scheme](np.arange(1.0, 6))
    assert np.allclose([len(p) / 20_000 for p in parts], units / units.sum(), atol=5 / 20_000)
    big = label_table(labels, parts, 3)[-1]  # of the largest client
    assert np.allclose(big / big.sum(), 1 / 3, atol=0.03)  # the rows were in order


@pytest.mark.parametrize("scheme", SIZES)
@pytest.mark.parametrize("n", [1, 2, 50, 999, 60_000])
def test_as_many_clients_as_are_promised_and_no_more(scheme: str, n: int) -> None:
    labels = np.zeros(n, dtype=int)
    most = most_clients(n, SIZES[scheme])
    assert min(map(len, make_partitions(labels, most, scheme, seed=0))) >= 1
    if most < n:
        with pytest.raises(UserError, match=f"choose at most {most} clients"):
            make_partitions(labels, most + 1, scheme, seed=0)


def test_balanced_dirichlet_has_equal_sizes_and_a_skew_that_falls() -> None:
    labels = np.random.default_rng(1).integers(0, 10, 6003)

    def share_of_main_class(alpha: float) -> float:
        parts = make_partitions(labels, 20, "dirichlet-balanced", seed=0, dirichlet_alpha=alpha)
        assert set(map(len, parts)) == {300, 301}
        table = label_table(labels, parts, 10)
        return float((table.max(1) / table.sum(1)).mean())

    shares = [share_of_main_class(alpha) for alpha in (0.01, 0.1, 1.0, 100.0)]
    assert shares[0] > 0.6 > shares[1] > 0.4 > shares[2] > 0.2 > shares[3]


@pytest.mark.parametrize("alpha", [0.01, 1.0, 20.0])
def test_mixtures_are_from_the_dirichlet_distribution(alpha: float) -> None:
    logs = log_dirichlet(alpha, (40_000, 4), np.random.default_rng(0))
    shares = np.exp(logs - logs.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    assert np.allclose(shares.mean(0), 1 / 4, atol=0.01)
    assert np.allclose(shares.var(0), 3 / 16 / (4 * alpha + 1), rtol=0.05)


@pytest.mark.parametrize("alpha", [5e-324, 1e308])
def test_no_alpha_is_too_small_or_too_large(alpha: float) -> None:
    assert np.isfinite(log_dirichlet(alpha, (50, 50), np.random.default_rng(0))).all()


def test_classes_are_drawn_by_the_mixture_of_those_left() -> None:
    mixtures = np.log([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    turns, draws = np.arange(20_000) % 2, np.random.default_rng(0).random(20_000)

    def shares(left: list[int]) -> NDArray[np.float64]:
        dealt = draw_classes(mixtures, np.array(left), turns, draws)
        counts = [np.bincount(dealt[turns == k], minlength=3) for k in (0, 1)]
        return np.array(counts) / 10_000

    assert np.allclose(shares([20_000] * 3), np.exp(mixtures), atol=0.02)
    renormalised = [[0.7 / 0.9, 0.2 / 0.9, 0], [0.5, 0.5, 0]]
    assert np.allclose(shares([20_000, 20_000, 0]), renormalised, atol=0.02)


@pytest.mark.parametrize("clients", [10, 1000])
def test_balanced_dirichlet_takes_under_five_seconds(clients: int) -> None:
    labels = np.random.default_rng(0).integers(0, 100, 60_000)
    start = time.perf_counter()
    make_partitions(labels, clients, "dirichlet-balanced", seed=0, dirichlet_alpha=0.01)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(("clients", "per_client"), [(10, 2), (6, 5), (25, 3), (1, 10)])
def test_pathological_clients_hold_neighbouring_classes(clients: int, per_client: int) -> None:
    parts = make_partitions(LABELS, clients, "pathological", seed=0, classes_per_client=per_client)
    for k, row in enumerate(label_table(LABELS, parts, 10)):
        assert set(np.flatnonzero(row)) == {(k + i) % 10 for i in range(per_client)}


def test_rows_by_hand() -> None:
    owner = np.array([2, 0, 0, 2, 0])
    parts = make_partitions(np.zeros(5, int), 4, "csv", seed=0, groups=owner)
    assert [p.tolist() for p in parts] == [[1, 2, 4], [], [0, 3], []]


def few_of_class_zero() -> NDArray[np.int64]:
    return np.r_[np.zeros(2, int), np.ones(98, int)]


@pytest.mark.parametrize(
    ("labels", "clients", "scheme", "options", "message"),
    [
        (LABELS, 6, "shards", {"shards_per_client": 101}, "606 shards of 600 .* choose 1 to 100"),
        (LABELS, 6, "shards", {"shards_per_client": 0}, "shards-per-client = 0"),
        (LABELS, 600, "linear", {}, "choose at most 34 clients"),
        (LABELS, 600, "square", {}, "choose at most 11 clients"),
        (LABELS, 600, "exponential", {}, "choose at most 6 clients"),
        (LABELS, 6, "dirichlet-balanced", {"dirichlet_alpha": 0.0}, "dirichlet-alpha = 0.0 must"),
        (LABELS, 6, "pathological", {"classes_per_client": 11}, "must be 1 to 10"),
        (LABELS, 6, "pathological", {"classes_per_client": 4}, "at least 5 classes per client"),
        (
            few_of_class_zero(),
            10,
            "pathological",
            {"classes_per_client": 1},
            "class 0 has 2 samples for the 5 clients",
        ),
        (LABELS, 6, "csv", {}, "set partition-file"),
        (LABELS, 6, "csv", {"groups": np.full(600, 6)}, "row 0 is given to client 6"),
        (LABELS, 6, "csv", {"groups": np.full(600, -1)}, "clients 0 to 5"),
    ],
)
def test_wrong_arguments(
    labels: NDArray[np.int64], clients: int, scheme: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_partitions(labels, clients, scheme, **({"seed": 0} | options))
    assert "\n" not in str(caught.value)
