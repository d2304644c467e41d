"""Each client's images are changed in its own way, in every process alike; labels are not."""

from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn_flwr import build
from fedsyn_flwr.client.worker import held
from fedsyn_flwr.config import DataConfig, load, merged
from fedsyn_flwr.data import cache
from fedsyn_flwr.data.cache import ImageSet
from fedsyn_flwr.data.feature_skew import CAMERAS, skewed

PARTS = [np.arange(0, 20), np.arange(20, 30), np.empty(0, np.int64), np.arange(30, 58)]


def grey(n: int = 60, channels: int = 3, value: int = 100) -> ImageSet:
    images = np.full((n, channels, 9, 9), value, dtype=np.uint8)
    return ImageSet(images, np.arange(n) % 7, {"site": np.arange(n) % 2}, list("abcdefg"))


@pytest.mark.parametrize("kind", CAMERAS)
def test_once_per_machine_and_by_the_seed(kind: str, tmp_path: Path) -> None:
    before = cache.DECODES["count"]
    one, again, other = (skewed(grey(), PARTS, kind, 0.3, seed=s, root=tmp_path) for s in (0, 0, 1))
    assert cache.DECODES["count"] == before + 2
    assert np.array_equal(one.images, again.images)
    assert not np.array_equal(one.images, other.images)
    assert np.array_equal(one.labels, grey().labels)
    assert np.array_equal(one.groups["site"], grey().groups["site"])
    assert np.array_equal(one.images[58:], grey().images[58:])  # nobody's


@settings(max_examples=15, deadline=None)
@given(kind=st.sampled_from([*CAMERAS]), seed=st.integers(0, 2**31 - 1), owner=st.integers(0, 1))
def test_a_client_is_not_changed_by_what_others_have(
    kind: str, seed: int, owner: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data, root = grey(10, value=60), tmp_path_factory.mktemp("cache")
    parts = [np.arange(0, 4), np.arange(4, 8)]
    both = skewed(data, parts, kind, 0.5, seed=seed, root=root)
    alone = [p if k == owner else p[:0] for k, p in enumerate(parts)]
    single = skewed(data, alone, kind, 0.5, seed=seed, root=root)
    assert np.array_equal(both.images[parts[owner]], single.images[parts[owner]])


def test_noise_grows_from_none_to_the_strength(tmp_path: Path) -> None:
    noisy = skewed(grey(value=128), PARTS, "noise", 0.1, seed=0, root=tmp_path).images
    spread = [float(noisy[p].std()) / 255 for p in PARTS if len(p)]
    assert np.allclose(spread, [0, 0.1 / 3, 0.1], atol=0.003)


def test_one_angle_per_client(tmp_path: Path) -> None:
    data = grey(value=0)
    data.images[:, :, 4, :] = 255  # a bar
    turned = skewed(data, PARTS, "rotation", 0.5, seed=0, root=tmp_path).images
    clients = [turned[p] for p in PARTS if len(p)]
    assert all((images == images[0]).all() for images in clients)
    assert not (clients[0][0] == clients[1][0]).all()
    assert (turned[:, :, 4, 4] == 255).all()  # about the middle


def test_one_gain_per_channel(tmp_path: Path) -> None:
    tinted = skewed(grey(), PARTS, "colour", 0.4, seed=0, root=tmp_path).images
    for rows in (p for p in PARTS if len(p)):
        values = [np.unique(tinted[rows, c]) for c in range(3)]
        assert [len(v) for v in values] == [1, 1, 1]
        assert len({int(v[0]) for v in values}) > 1
        assert all(60 <= v[0] <= 140 for v in values)


def test_one_client_alone_has_no_noise(tmp_path: Path) -> None:
    images = skewed(grey(), [np.arange(60)], "noise", 1.0, seed=0, root=tmp_path).images
    assert (images == 100).all()


def test_a_node_holds_what_its_clients_cameras_took() -> None:
    plain, tilted = (load(merged({"feature-skew": k})) for k in ("none", "rotation"))
    as_they_are, parts = held(plain, 5)
    turned, same = held(tilted, 5)
    assert np.array_equal(as_they_are.images, build.images(plain, "train").images)
    assert all(np.array_equal(a, b) for a, b in zip(parts, same, strict=True))
    expected = skewed(as_they_are, parts, "rotation", tilted.data.feature_skew_strength, seed=0)
    assert np.array_equal(turned.images, expected.images)
    assert not np.array_equal(turned.images, as_they_are.images)


def test_the_keys_name_every_camera() -> None:
    assert get_args(get_type_hints(DataConfig)["feature_skew"]) == ("none", *CAMERAS)
