"""The server's pool: who may add to it, who still needs it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedsyn_flwr.server.round_record import RoundRecord
from fedsyn_flwr.server.synthetic_pool import SyntheticPool
from fedsyn_flwr.server.update import Update


def pool(share: float = 0.5, uses_pool: bool = True, pool_max: int = 0) -> SyntheticPool:
    data: Any = SimpleNamespace(shape=(1, 2, 2), mean=torch.zeros(1), std=torch.ones(1))
    params = SimpleNamespace(synthetic_dtype="float32", pool_max=pool_max, uses_pool=uses_pool)
    federation = SimpleNamespace(seed=0, min_success_fraction=share)
    config: Any = SimpleNamespace(params=params, federation=federation)
    return SyntheticPool(data, 3, config, RoundRecord(), soft_labels=False)


def update(partition: int, *labels: int, value: float = 0.0) -> Update:
    images = np.full((len(labels), 1, 2, 2), value, np.float32)
    part = {"images": images, "labels": np.array(labels, np.int64)}
    return Update(partition, {"synthetic": part}, 10, {"synthesis/loss": float(partition)})


def renew(p: SyntheticPool, updates: list[Update], number: int = 4, clients: int = 3) -> int:
    return p.renew(updates, number, lambda _: 2, clients)


def test_contributions_are_pooled_in_order_and_measured() -> None:
    p = pool()
    assert renew(p, [update(0, 1, 2), update(1), update(2, 0)]) == 3
    assert p.version == 4
    assert p.arrays is not None
    assert p.arrays["labels"].tolist() == [1, 2, 0]
    assert p.record.metrics["synthesis/pool_size"] == 3
    assert p.record.metrics["synthesis/loss"] == pytest.approx((2 * 0 + 1 * 2) / 3)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (update(1, 0, 1, 2), "3 images, at most 2 allowed"),
        (update(1, 7), "labels from 7 to 7"),
        (update(1, 0, value=float("nan")), "NaN or infinite pixels"),
    ],
)
def test_what_cannot_be_pooled_is_refused_with_its_client(bad: Update, complaint: str) -> None:
    p = pool()
    assert renew(p, [update(0, 1), bad, update(2, 2)]) == 2
    assert p.arrays is not None
    assert p.arrays["labels"].tolist() == [1, 2]
    assert p.record.failed == {1}
    assert complaint in p.record.reasons[0]


def test_a_remnant_leaves_the_old_pool() -> None:
    p = pool(share=0.5)
    renew(p, [update(0, 1), update(1, 2)], number=2)
    assert renew(p, [update(0, 0)], number=4) == 1
    assert p.version == 2
    assert p.record.metrics["synthesis/too_few"] == 1


def test_it_is_sent_once_to_each_and_again_to_who_lost_it() -> None:
    p = pool()
    p.held(0)  # answered while there was none
    assert p.missing(0) is None
    renew(p, [update(0, 1), update(1, 2)])
    assert p.missing(0) is p.missing(1) is p.arrays
    p.held(0)
    assert p.missing(0) is None
    p.lost(0)
    assert p.missing(0) is p.arrays
    p.held(1)
    renew(p, [update(0, 1), update(1, 2)], number=6)
    assert p.missing(1) is p.arrays


def test_nobody_is_sent_a_pool_that_nobody_trains_on() -> None:
    p = pool(uses_pool=False)
    renew(p, [update(0, 1), update(1, 2)])
    assert p.missing(0) is None


def test_it_is_kept_and_who_holds_it_is_not() -> None:
    p, again = pool(), pool()
    renew(p, [update(0, 1), update(1, 2)])
    p.held(0)
    again.restore(*p.state())
    assert again.version == 4
    assert again.missing(0) is not None
    empty = pool()
    empty.restore(*pool().state())
    assert empty.arrays is None


def test_pixels_are_for_people() -> None:
    p = pool()
    renew(p, [update(0, 1, value=1.0), update(1, 2, value=-3.0)])
    found = p.pixels()
    assert found["images"].dtype == np.uint8
    assert found["images"].reshape(2, -1)[:, 0].tolist() == [255, 0]
    assert found["labels"].tolist() == [1, 2]
