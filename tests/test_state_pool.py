"""Node-side state by round, and what may enter the pool."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.state import NodeState, VersionedStore
from fedsyn_flwr.synthesis.pool import Pool, PoolSampler, problem_with


def at(value: float) -> dict[str, np.ndarray]:
    return {"a": np.full(3, value, np.float32)}


def test_a_round_reads_what_was_written_before_it(tmp_path: Path) -> None:
    store = VersionedStore(tmp_path)
    assert store.before(5) is None
    store.save(2, at(2), settled=1)
    store.save(5, at(5), settled=4)
    assert store.before(2) is None
    assert store.before(5)["a"][0] == 2  # a repeated round 5 does not see itself
    assert store.before(6)["a"][0] == 5


def test_only_what_a_repeated_round_can_ask_for_is_kept(tmp_path: Path) -> None:
    store = VersionedStore(tmp_path)
    for r in range(1, 8):
        store.save(r, at(r), settled=3 if r > 3 else 0)
    assert store.versions() == [3, 4, 5, 6, 7]
    store.save(8, at(8), settled=7)
    assert store.versions() == [7, 8]


def test_runs_and_clients_do_not_mix(tmp_path: Path) -> None:
    NodeState(tmp_path, "one").client(0).save(1, at(1), 0)
    assert NodeState(tmp_path, "two").client(0).before(9) is None
    assert NodeState(tmp_path, "one").client(1).before(9) is None
    assert NodeState(tmp_path, "one").client(0).before(9)["a"][0] == 1


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VersionedStore(tmp_path)
    store.save(1, at(1), 0)

    def broken(arrays: object, name: str) -> None:
        Path(name).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("fedsyn_flwr.state.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        store.save(1, at(2), 0)
    assert store.load(1)["a"][0] == 1
    assert len(list(tmp_path.iterdir())) == 1


def part(n: int, label: int = 0) -> dict[str, np.ndarray]:
    return {"images": np.full((n, 1, 2, 2), label, np.float32), "labels": np.full(n, label)}


def test_merge_keeps_the_order_and_skips_empty_parts() -> None:
    pool = Pool.merge([part(2, 1), part(0), part(1, 3)])
    assert pool.labels.tolist() == [1, 1, 3]
    assert Pool.merge([part(0)]) is None


def test_missing_pool_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pool 4 is not on this node"):
        Pool.load(VersionedStore(tmp_path), 4)


class Data:
    def laid_out(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_sampler_uses_everything_before_repeating() -> None:
    pool = Pool(np.arange(5, dtype=np.float32).reshape(5, 1, 1, 1), np.arange(5))
    sampler = PoolSampler(pool, torch.Generator().manual_seed(0), Data())
    drawn = torch.cat([sampler.draw(2)[1] for _ in range(5)])
    assert sorted(drawn[:5].tolist()) == sorted(drawn[5:].tolist()) == [0, 1, 2, 3, 4]
    x, y = sampler.draw(7)
    assert torch.equal(x.flatten().long(), y)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"images": np.zeros((2, 3, 2, 2), np.float32)}, "expected"),
        ({"labels": np.array([0, 10])}, "labels from 0 to 10"),
        ({"labels": np.array([-1, 0])}, "labels from -1 to 0"),
        ({"labels": np.array([0.0, 1.0])}, "labels of type float64"),
        ({"labels": np.array([0])}, "with labels"),
        ({"images": np.full((2, 1, 2, 2), np.nan, np.float32)}, "NaN"),
        ({"images": np.zeros((9, 1, 2, 2), np.float32), "labels": np.zeros(9, int)}, "at most 4"),
    ],
)
def test_bad_contributions_are_refused(change: dict[str, np.ndarray], complaint: str) -> None:
    assert problem_with(part(2), (1, 2, 2), 10, 4) is None
    assert complaint in problem_with({**part(2), **change}, (1, 2, 2), 10, 4)
