"""Node-side state by round, what may enter the pool, and how it is kept and shared."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsyn_flwr.client.pool_store import LocalPool, PoolSampler, keep_pool, open_pool
from fedsyn_flwr.client.state import NodeState, VersionedStore
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.synthesis.pool import Pool, class_quotas, problem_with

CPU = torch.device("cpu")


def at(value: float) -> dict[str, np.ndarray]:
    return {"a": np.full(3, value, np.float32)}


def test_the_newest_version_up_to_a_round(tmp_path: Path) -> None:
    store = VersionedStore(tmp_path)
    assert store.newest(5) == 0
    store.save(2, at(2))
    store.save(5, at(5))
    assert [store.newest(until) for until in (1, 2, 4, 5, 9)] == [0, 2, 2, 5, 5]
    assert store.load(5)["a"][0] == 5
    assert store.load(4) is None


def test_other_versions_than_those_wanted_are_dropped(tmp_path: Path) -> None:
    store = VersionedStore(tmp_path)
    for r in range(1, 6):
        store.save(r, at(r))
    store.keep((0, 2, 5))
    assert store.versions() == [2, 5]


def test_only_what_a_repeated_round_can_ask_for_is_kept(tmp_path: Path) -> None:
    store = VersionedStore(tmp_path)
    for r in range(1, 8):
        store.save(r, at(r))
    store.settle(0)
    assert store.versions() == [1, 2, 3, 4, 5, 6, 7]
    store.settle(3)
    assert store.versions() == [3, 4, 5, 6, 7]
    store.settle(9)
    assert store.versions() == [7]


def test_runs_and_clients_do_not_mix(tmp_path: Path) -> None:
    NodeState(tmp_path, "one").client(0).save(1, at(1))
    assert NodeState(tmp_path, "two").client(0).load(1) is None
    assert NodeState(tmp_path, "one").client(1).load(1) is None
    assert NodeState(tmp_path, "one").client(0).load(1)["a"][0] == 1


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VersionedStore(tmp_path)
    store.save(1, at(1))

    def broken(arrays: object, name: str) -> None:
        Path(name).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        store.save(1, at(2))
    assert store.load(1)["a"][0] == 1
    assert len(list(tmp_path.iterdir())) == 1


def part(n: int, label: int = 0) -> dict[str, np.ndarray]:
    return {"images": np.full((n, 1, 2, 2), label, np.float32), "labels": np.full(n, label)}


def test_merge_keeps_the_order_and_skips_empty_parts() -> None:
    pool = Pool.merge([part(2, 1), part(0), part(1, 3)])
    assert pool.labels.tolist() == [1, 1, 3]
    assert Pool.merge([part(0)]) is None


# ---- the pool's limit


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [
        ([10, 10, 10], 9, [3, 3, 3]),
        ([1, 10, 10], 9, [1, 4, 4]),
        ([0, 2, 10, 10], 13, [0, 2, 5, 6]),
        ([5, 5, 5], 2, [0, 1, 1]),
        ([4, 0, 1], 5, [4, 0, 1]),
    ],
)
def test_quotas_by_hand(counts: list[int], size: int, expected: list[int]) -> None:
    assert class_quotas(np.array(counts), size) == expected


def test_limit_is_balanced_seeded_and_keeps_the_order() -> None:
    labels = np.array([0] * 2 + [1] * 30 + [2] * 30)
    pool = Pool(np.arange(62, dtype=np.float32).reshape(62, 1, 1, 1), labels)
    limited = [pool.limited(22, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.bincount(limited[0].labels).tolist() == [2, 10, 10]
    chosen = [p.images.flatten().astype(int) for p in limited]
    assert (np.diff(chosen[0]) > 0).all()
    assert (labels[chosen[0]] == limited[0].labels).all()
    assert np.array_equal(chosen[0], chosen[1])
    assert not np.array_equal(chosen[0], chosen[2])
    assert pool.limited(0, np.random.default_rng(0)) is pool
    assert pool.limited(62, np.random.default_rng(0)) is pool


# ---- the node's copy


def test_missing_pool_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pool 4 is not on this node"):
        open_pool(VersionedStore(tmp_path), 4, CPU)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists its maps")
def test_pool_is_mapped_and_opened_once_per_process(tmp_path: Path) -> None:
    """Whatever process opens it uses the file's pages, not memory of its own."""
    store = VersionedStore(tmp_path)
    keep_pool(store, 3, part(100, 2), settled=0)
    first = open_pool(store, 3, CPU)
    assert open_pool(store, 3, CPU) is first
    address = first.images.data_ptr()
    with open("/proc/self/maps") as maps:
        regions = [line.split() for line in maps]
    names = [
        region[-1]
        for region in regions
        if int(region[0].split("-")[0], 16) <= address < int(region[0].split("-")[1], 16)
    ]
    assert names == [str(store.path(3))]


def test_pool_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    store = VersionedStore(tmp_path)
    keep_pool(store, 3, part(4, 2), settled=0)
    before = os.stat(store.path(3))
    keep_pool(store, 3, part(4, 2), settled=0)
    assert os.stat(store.path(3)) == before
    assert open_pool(store, 3, CPU).labels.tolist() == [2] * 4
    # A synthesis repeated after a crash may have an answer more; the newer pool counts.
    keep_pool(store, 3, part(5, 2), settled=0)
    assert open_pool(store, 3, CPU).labels.tolist() == [2] * 5


class Data:
    mean, std = (0.5,), (0.25,)

    def laid_out(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_sampler_uses_everything_before_repeating() -> None:
    pool = LocalPool(torch.arange(5.0).reshape(5, 1, 1, 1), torch.arange(5))
    sampler = PoolSampler(pool, torch.Generator().manual_seed(0), Data())
    drawn = torch.cat([sampler.draw(2)[1] for _ in range(5)])
    assert sorted(drawn[:5].tolist()) == sorted(drawn[5:].tolist()) == [0, 1, 2, 3, 4]
    x, y = sampler.draw(7)
    assert torch.equal(x.flatten().long(), y)


def test_sampler_decodes_pixels() -> None:
    pool = LocalPool(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1), torch.arange(2))
    x, y = PoolSampler(pool, torch.Generator().manual_seed(0), Data()).draw(2)
    assert x.dtype == torch.float32
    assert x.flatten()[y.argsort()].tolist() == [-2.0, 2.0]  # (0 - .5) / .25 and (1 - .5) / .25


# ---- contributions


def without(name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in part(2).items() if key != name}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"images": np.zeros((2, 3, 2, 2), np.float32)}, "expected"),
        ({"images": np.float32(1)}, "expected"),
        ({"images": np.zeros((2, 1, 2, 2), np.float64)}, "of type float64, expected float32"),
        ({"images": np.zeros((2, 1, 2, 2), np.uint8)}, "of type uint8, expected float32"),
        ({"labels": np.array([0, 10])}, "labels from 0 to 10"),
        ({"labels": np.array([-1, 0])}, "labels from -1 to 0"),
        ({"labels": np.array([0.0, 1.0])}, "labels of type float64"),
        ({"labels": np.array([0])}, "with labels"),
        ({"labels": np.array([0, 1, 2])}, "with labels"),
        ({"images": np.full((2, 1, 2, 2), np.nan, np.float32)}, "NaN"),
        ({"images": np.zeros((9, 1, 2, 2), np.float32), "labels": np.zeros(9, int)}, "at most 4"),
    ],
)
def test_bad_contributions_are_refused(change: dict[str, np.ndarray], complaint: str) -> None:
    assert problem_with(part(2), (1, 2, 2), 10, 4, "float32") is None
    assert complaint in problem_with({**part(2), **change}, (1, 2, 2), 10, 4, "float32")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "no images and no labels"),
        (without("labels"), "no labels"),
        (without("images"), "no i"),
    ],
)
def test_missing_arrays_are_refused(given: dict[str, np.ndarray], complaint: str) -> None:
    assert complaint in problem_with(given, (1, 2, 2), 10, 4, "float32")
