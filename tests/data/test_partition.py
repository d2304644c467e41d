"""Partitions: disjoint, complete, deterministic, quick, and shaped as their scheme says."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsyn_flwr.data.partition import label_table, make_partitions
from fedsyn_flwr.errors import UserError

# The others have conditions of their own: test_partition_skews.py
SCHEMES = ("iid", "dirichlet", "classes", "natural")


def some_labels(n: int, classes: int = 10, seed: int = 0) -> NDArray[np.int64]:
    labels = np.random.default_rng(seed).integers(0, classes, n)
    labels[:classes] = np.arange(classes)[:n]
    return labels


def assert_exact_cover(parts: list[NDArray[np.int64]], n: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert all(p.dtype == np.int64 and np.all(np.diff(p) > 0) for p in parts)


@settings(max_examples=60, deadline=None)
@given(
    scheme=st.sampled_from(SCHEMES),
    n=st.integers(1, 300),
    clients=st.integers(1, 40),
    classes=st.integers(1, 12),
    alpha=st.sampled_from([1e-6, 0.01, 0.3, 1.0, 100.0]),
    min_size=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_cover_and_determinism(
    scheme: str, n: int, clients: int, classes: int, alpha: float, min_size: int, seed: int
) -> None:
    classes, clients = min(classes, n), min(clients, n)
    labels = some_labels(n, classes, seed)
    options: dict[str, Any] = {
        "seed": seed,
        "dirichlet_alpha": alpha,
        "classes_per_client": max(1 + seed % classes, -(-classes // clients)),
        "groups": np.arange(n) % (clients + seed % (n - clients + 1)),
        "min_size": min(min_size, n // clients),
    }
    parts = make_partitions(labels, clients, scheme, **options)
    assert len(parts) == clients
    assert_exact_cover(parts, n)
    assert min(len(p) for p in parts) >= options["min_size"]
    again = make_partitions(labels, clients, scheme, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_seed_gives_another_partition(scheme: str) -> None:
    labels = some_labels(500)
    one, two = (
        make_partitions(labels, 20, scheme, seed=s, groups=np.arange(500) % 60) for s in (0, 1)
    )
    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("clients", [10, 100, 1000])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 1])
def test_dirichlet_takes_under_five_seconds(alpha: float, clients: int) -> None:
    labels = some_labels(60_000)
    start = time.perf_counter()
    parts = make_partitions(labels, clients, "dirichlet", seed=0, dirichlet_alpha=alpha)
    assert time.perf_counter() - start < 5
    assert_exact_cover(parts, 60_000)


@pytest.mark.parametrize("clients", [10, 100])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 1])
def test_dirichlet_on_digits(alpha: float, clients: int) -> None:
    labels = some_labels(1437)
    start = time.perf_counter()
    parts = make_partitions(labels, clients, "dirichlet", seed=0, dirichlet_alpha=alpha, min_size=2)
    assert time.perf_counter() - start < 5
    assert_exact_cover(parts, 1437)
    assert min(map(len, parts)) >= 2


@pytest.mark.parametrize("per_client", [1, 10, 50, 51, 100])
def test_classes_take_under_five_seconds(per_client: int) -> None:
    labels = some_labels(60_000, classes=100)
    start = time.perf_counter()
    parts = make_partitions(labels, 500, "classes", seed=0, classes_per_client=per_client)
    assert time.perf_counter() - start < 5
    assert_exact_cover(parts, 60_000)


def test_iid_sizes_and_labels_are_even() -> None:
    labels = np.sort(some_labels(1003))
    parts = make_partitions(labels, 10, "iid", seed=3)
    assert {len(p) for p in parts} == {100, 101}
    assert label_table(labels, parts, 10).min() > 0  # sorted labels were shuffled


def test_dirichlet_skew_falls_with_alpha() -> None:
    labels = some_labels(20_000)

    def share_of_main_class(alpha: float) -> float:
        parts = make_partitions(labels, 10, "dirichlet", seed=0, dirichlet_alpha=alpha, min_size=1)
        table = label_table(labels, parts, 10)
        return float((table.max(1) / table.sum(1)).mean())

    shares = [share_of_main_class(alpha) for alpha in (0.01, 0.3, 100.0)]
    assert shares[0] > 0.7 > shares[1] > 0.2 > shares[2]


def test_dirichlet_is_the_draw_of_flwr_datasets() -> None:
    import datasets
    from flwr_datasets.partitioner import DirichletPartitioner

    labels = some_labels(400)
    partitioner = DirichletPartitioner(
        8, "label", 0.5, min_partition_size=0, self_balancing=False, shuffle=False, seed=7
    )
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels, "row": range(400)})
    ours = make_partitions(labels, 8, "dirichlet", seed=7, dirichlet_alpha=0.5)
    for k, part in enumerate(ours):
        assert sorted(partitioner.load_partition(k)["row"]) == part.tolist()


@pytest.mark.parametrize(
    ("clients", "per_client"),
    [(20, 2), (100, 3), (10, 9), (4, 3), (5, 2)],  # library, library, ours: dense, few clients
)
def test_every_client_holds_exactly_its_classes(clients: int, per_client: int) -> None:
    labels = some_labels(5000)
    parts = make_partitions(labels, clients, "classes", seed=1, classes_per_client=per_client)
    table = label_table(labels, parts, 10)
    assert ((table > 0).sum(1) == per_client).all()
    assert_exact_cover(parts, 5000)


def test_our_dealing_gives_every_class_equally_many_holders() -> None:
    labels = some_labels(5000)
    parts = make_partitions(labels, 7, "classes", seed=0, classes_per_client=4)
    holders = (label_table(labels, parts, 10) > 0).sum(0)
    assert holders.max() - holders.min() <= 1


def test_a_class_with_fewer_rows_than_holders() -> None:
    labels = np.r_[np.zeros(2), np.ones(98)].astype(int)
    parts = make_partitions(labels, 10, "classes", seed=0, classes_per_client=1)
    assert_exact_cover(parts, 100)
    assert label_table(labels, parts, 2)[:, 0].sum() == 2


def test_groups_stay_whole_and_are_dealt_evenly() -> None:
    groups = np.random.default_rng(0).integers(0, 53, 2000) * 7 - 3  # any numbers
    parts = make_partitions(some_labels(2000), 10, "natural", seed=0, groups=groups)
    held = [set(groups[p]) for p in parts]
    assert sum(len(h) for h in held) == len(set().union(*held)) == 53
    assert {len(h) for h in held} == {5, 6}


def test_groups_may_be_strings() -> None:
    groups = np.array(["ann", "bob", "eve", "bob"])
    parts = make_partitions([0, 1, 0, 1], 3, "natural", seed=0, groups=groups)
    assert sorted(p.tolist() for p in parts) == [[0], [1, 3], [2]]


def test_min_size_takes_from_the_largest() -> None:
    labels = np.zeros(10, dtype=int)
    groups = np.array([0] * 9 + [1])
    parts = make_partitions(labels, 2, "natural", seed=0, groups=groups, min_size=4)
    assert sorted(map(len, parts)) == [4, 6]
    assert_exact_cover(parts, 10)


def test_label_table_counts() -> None:
    table = label_table([0, 2, 2, 1], [np.array([0, 1, 2]), np.array([], dtype=int)], 4)
    assert table.tolist() == [[1, 0, 2, 0], [0, 0, 0, 0]]
    assert table.dtype == np.int64


@pytest.mark.parametrize(
    ("clients", "scheme", "options", "message"),
    [
        (0, "iid", {}, "0 clients cannot share 50 samples"),
        (51, "iid", {}, "choose 1 to 50 clients"),
        (5, "even", {}, "'even' is unknown; choose one of iid, dirichlet, classes, natural"),
        (5, "dirichlet", {"dirichlet_alpha": 0.0}, "dirichlet-alpha = 0.0 must be"),
        (5, "dirichlet", {"dirichlet_alpha": -1.0}, "dirichlet-alpha = -1.0 must be"),
        (5, "dirichlet", {"dirichlet_alpha": float("nan")}, "dirichlet-alpha = nan must be"),
        (5, "classes", {"classes_per_client": 11}, "classes-per-client = 11 must be 1 to 10"),
        (5, "classes", {"classes_per_client": 0}, "classes-per-client = 0 must be 1 to 10"),
        (4, "classes", {"classes_per_client": 2}, "at least 3 classes per client"),
        (5, "natural", {}, "set natural-column"),
        (5, "natural", {"groups": [0, 1]}, "set natural-column"),
        (5, "natural", {"groups": [0, 1] * 25}, "2 groups cannot fill 5 clients"),
        (5, "iid", {"min_size": 11}, "min-partition-size 11 is impossible"),
        (5, "iid", {"seed": -1}, "seed -1 is negative"),
    ],
)
def test_wrong_arguments(clients: int, scheme: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_partitions(some_labels(50), clients, scheme, **({"seed": 0} | options))
    assert "\n" not in str(caught.value)
