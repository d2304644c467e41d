"""Loaders: every source gives the very pixels, labels and groups that went in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn_flwr.data.sources import DATASETS, ImageSet, get_spec, load
from fedsyn_flwr.errors import UserError

from . import tables

SHARED = Path(__file__).resolve().parents[2].parent / "shared/data"


def test_digits_are_the_original_ones() -> None:
    from sklearn.datasets import load_digits

    train, test = load("digits", "train"), load("digits", "test")
    assert train.images.shape == (1437, 1, 8, 8)
    assert test.images.shape == (360, 1, 8, 8)
    assert train.images.dtype == np.uint8
    assert train.labels.dtype == np.int64
    ours = np.concatenate([train.images, test.images]).reshape(1797, 64)
    theirs = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))
    np.testing.assert_allclose(np.bincount(train.labels) / np.bincount(test.labels), 4, atol=0.15)


def test_digits_mean_and_std_are_those_of_the_spec() -> None:
    pixels = load("digits", "train").images / 255
    spec = get_spec("digits")
    assert pixels.mean() == pytest.approx(spec.mean[0], abs=2e-3)
    assert pixels.std() == pytest.approx(spec.std[0], abs=2e-3)


@pytest.mark.parametrize(
    ("name", "layout"),
    [("svhn", ""), ("svhn", "cropped_digits"), ("mnist-m", "data"), ("cifar100", "")],
)
def test_parquet_folder(name: str, layout: str, tmp_path: Path, no_hub: None) -> None:
    root, images = tables.folder(tmp_path / "d", name, layout=layout)
    for split in ("train", "test"):
        loaded = load(name, split, data_dir=str(root))
        np.testing.assert_array_equal(loaded.images, images[split])
        assert loaded.labels.tolist() == [i % 7 for i in range(12)]
        assert loaded.class_names == [f"c{i}" for i in range(DATASETS[name].num_classes)]
    assert list(loaded.groups) == (["coarse_label"] if name == "cifar100" else [])


def test_femnist_holds_out_a_fixed_tenth(tmp_path: Path, no_hub: None) -> None:
    root, images = tables.folder(tmp_path / "d", "femnist", n=50)
    train = load("femnist", "train", data_dir=str(root))
    test = load("femnist", "test", data_dir=str(root))
    assert (len(train.labels), len(test.labels)) == (45, 5)
    position = {bytes(image): i for i, image in enumerate(images["train"])}
    rows = [[position[bytes(image)] for image in part.images] for part in (train, test)]
    assert sorted(rows[0] + rows[1]) == list(range(50))
    assert rows[0] == sorted(rows[0])
    assert train.groups["writer_id"].tolist() == [i % 5 for i in rows[0]]
    assert test.labels.tolist() == [i % 7 for i in rows[1]]


def test_femnist_uses_a_test_split_that_is_there(tmp_path: Path) -> None:
    root, images = tables.folder(tmp_path / "d", "femnist", n=20)
    tables.write_parquet(
        root / "test-0.parquet", tables.dataset("femnist", images["test"], [3] * 20)
    )
    assert len(load("femnist", "train", data_dir=str(root)).labels) == 20
    assert load("femnist", "test", data_dir=str(root)).labels.tolist() == [3] * 20


@pytest.mark.parametrize("source", ["parquet", "hub", "digits"])
def test_limit_keeps_the_first_rows(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, images = tables.folder(tmp_path / "d", "svhn")
    if source == "hub":
        _fake_hub(monkeypatch, "svhn", images["train"])
    name, where = ("digits", "") if source == "digits" else ("svhn", str(root))
    where = "" if source == "hub" else where
    whole, part = load(name, "train", data_dir=where), load(name, "train", data_dir=where, limit=5)
    assert len(part.labels) == 5
    np.testing.assert_array_equal(part.images, whole.images[:5])
    np.testing.assert_array_equal(part.labels, whole.labels[:5])
    assert len(load(name, "train", data_dir=where, limit=10**6).labels) == len(whole.labels)


def test_many_batches_and_files_keep_their_order(tmp_path: Path) -> None:
    images = tables.pixels(2500, 3, size=2)
    labels = [i % 10 for i in range(2500)]
    for k, rows in enumerate((slice(0, 1300), slice(1300, 2500))):
        data = tables.dataset("svhn", images[rows], labels[rows])
        tables.write_parquet(tmp_path / f"d/train-0000{k}-of-00002.parquet", data)
    loaded = load("svhn", "train", data_dir=str(tmp_path / "d"))
    np.testing.assert_array_equal(loaded.images, images)
    assert loaded.labels.tolist() == labels


def _fake_hub(monkeypatch: pytest.MonkeyPatch, name: str, images: Any) -> list[Any]:
    import datasets

    calls: list[Any] = []

    def load_dataset(hub: str, config: str | None, split: str) -> Any:
        calls.append((hub, config, split))
        return tables.dataset(name, images, [i % 7 for i in range(len(images))])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_hub_is_asked_by_name_and_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    images = tables.pixels(9, 3)
    calls = _fake_hub(monkeypatch, "svhn", images)
    loaded = load("svhn", "test")
    assert calls == [("ufldl-stanford/svhn", "cropped_digits", "test")]
    np.testing.assert_array_equal(loaded.images, images)


def test_hub_femnist_has_only_a_train_split(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _fake_hub(monkeypatch, "femnist", tables.pixels(30, 1))
    sizes = [len(load("femnist", s).labels) for s in ("train", "test")]
    assert sizes == [27, 3]
    assert {call[2] for call in calls} == {"train"}


def test_hub_out_of_reach_is_one_line(no_hub: None) -> None:
    with pytest.raises(UserError, match=r"ylecun/mnist.*no network.*data-dir") as caught:
        load("mnist", "train")
    assert "\n" not in str(caught.value)


def test_image_folder(tmp_path: Path, no_hub: None) -> None:
    classes = ["ant", "bee", "cat"]
    kept = tables.image_folder(tmp_path / "d", classes)
    for split in ("train", "test"):
        loaded = load("cifar10", split, data_dir=str(tmp_path / "d"))
        names = [loaded.class_names[label] for label in loaded.labels]
        found = dict(zip((bytes(i) for i in loaded.images), names, strict=True))
        assert found == kept[split]
    assert len(set(load("cifar10", "train", data_dir=str(tmp_path / "d"), limit=5).labels)) > 1


def test_image_folder_numbers_classes_as_numbers(tmp_path: Path) -> None:
    kept = tables.image_folder(tmp_path / "d", [str(i) for i in range(12)], per_class=1)
    loaded = load("cifar100", "train", data_dir=str(tmp_path / "d"))
    found = {bytes(i): str(label) for i, label in zip(loaded.images, loaded.labels, strict=True)}
    assert found == kept["train"]


def test_a_class_missing_from_test_does_not_shift_the_others(tmp_path: Path) -> None:
    import shutil

    tables.image_folder(tmp_path / "d", ["ant", "bee", "cat"])
    shutil.rmtree(tmp_path / "d/test/ant")
    assert set(load("cifar10", "test", data_dir=str(tmp_path / "d")).labels) == {1, 2}


@pytest.mark.parametrize(("name", "channels"), [("digits", 1), ("svhn", 3)])
def test_images_get_the_channels_of_the_spec(name: str, channels: int, tmp_path: Path) -> None:
    tables.image_folder(tmp_path / "d", ["0", "1"], channels=4 - channels)
    assert load(name, "train", data_dir=str(tmp_path / "d")).images.shape[1] == channels


def test_columns_are_found_from_the_schema(tmp_path: Path) -> None:
    """FEMNIST's names are absent: the only Image and the only ClassLabel column are taken."""
    root, _images = tables.folder(tmp_path / "d", "svhn")
    loaded = load("femnist", "train", data_dir=str(root))
    assert loaded.images.shape[1] == 1
    assert len(loaded.labels) == 12
    assert loaded.class_names == [f"c{i}" for i in range(10)] + [str(i) for i in range(10, 62)]


def test_parquet_without_declared_features(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    root, images = tables.folder(tmp_path / "d", "svhn")
    path = root / "train-00000-of-00001.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    loaded = load("svhn", "train", data_dir=str(root))
    np.testing.assert_array_equal(loaded.images, images["train"])


@pytest.mark.parametrize(
    ("name", "part", "first_labels", "groups"),
    [
        ("mnist", "mnist_by_writer", [5, 0, 4], {"writer_id", "hsf_id"}),
        ("cifar10", "cifar10_part", [6, 9, 9], set()),
        ("cifar100", "cifar100_part", [19, 29, 0], {"coarse_label"}),
        ("mnist-m", "mnist_m_part", [5, 0, 4], set()),
    ],
)
def test_real_folders(
    name: str, part: str, first_labels: list[int], groups: set[str], no_hub: None
) -> None:
    if not (SHARED / part).is_dir():
        pytest.skip(f"{SHARED / part} is absent")
    loaded: ImageSet = load(name, "train", data_dir=str(SHARED / part), limit=500)
    spec = get_spec(name)
    assert loaded.images.shape == (500, spec.channels, spec.size, spec.size)
    assert loaded.labels[:3].tolist() == first_labels
    assert set(loaded.groups) == groups
    means = (loaded.images / 255).mean((0, 2, 3))
    np.testing.assert_allclose(means, spec.mean, atol=0.03)
