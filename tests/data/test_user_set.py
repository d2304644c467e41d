"""Datasets of a user's own, as users have them: mixed sizes, odd labels, bad files."""

import io
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from fedsyn_flwr import build, config, preflight
from fedsyn_flwr.data import pixels
from fedsyn_flwr.data.listings import Columns, empty_classes
from fedsyn_flwr.data.user_set import UserSet, hold_out, statistics
from fedsyn_flwr.errors import UserError

from .own_sets import parquet, picture, save, settings, tree


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))


# ---- folders


def test_37_classes_of_mixed_colour_jpegs(tmp_path: Path) -> None:
    names = [f"kind {c:02}" for c in range(37)]
    user = UserSet("folder", str(tree(tmp_path / "d", names, {"train": 3, "test": 1})), size=16)
    train, test = user.load("train"), user.load("test")
    assert train.images.shape == (111, 3, 16, 16)
    assert test.images.shape == (37, 3, 16, 16)
    assert train.class_names == names == test.class_names
    assert np.bincount(train.labels).tolist() == [3] * 37
    # JPEG keeps the mean brightness of a class
    bright = [train.images[train.labels == c].mean() for c in range(37)]
    np.testing.assert_allclose(bright, 6 * np.arange(37) + 10, atol=4)


def test_mixed_sizes_need_a_size(tmp_path: Path) -> None:
    user = UserSet("folder", str(tree(tmp_path / "d", ["a", "b"], {"train": 2})))
    with pytest.raises(UserError, match=r"mixes image sizes.*image-size"):
        user.load("train")


def test_facts_come_from_the_training_images(tmp_path: Path) -> None:
    folder = tree(tmp_path / "d", ["a", "b", "c"], {"train": 4, "val": 2})
    found = build.spec(settings(folder, **{"image-size": 12}))
    train = build.images(settings(folder, **{"image-size": 12}), "train")
    x = train.images / 255.0
    assert (found.num_classes, found.channels, found.size) == (3, 3, 12)
    np.testing.assert_allclose(found.mean, x.mean((0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(found.std, x.std((0, 2, 3)), rtol=1e-9)
    own = settings(folder, **{"image-size": 12, "image-mean": "0.5,0.4,0.3"})
    assert build.spec(own).mean == (0.5, 0.4, 0.3)
    with pytest.raises(UserError, match="image-std = '0': give 3 numbers"):
        build.spec(settings(folder, **{"image-size": 12, "image-std": "0"}))


def test_a_tree_without_splits_holds_out_a_share_of_each_class(tmp_path: Path) -> None:
    for c, n in (("few", 1), ("some", 5), ("many", 20)):
        for i in range(n):
            save(picture(9, 9, 10 + i + 7 * n), tmp_path / "d" / c / f"{i}.png")
    user = UserSet("folder", str(tmp_path / "d"), test_fraction=0.2)
    train, test = user.load("train"), user.load("test")
    assert train.class_names == ["few", "many", "some"]
    assert np.bincount(train.labels).tolist() == [1, 16, 4]
    assert np.bincount(test.labels, minlength=3).tolist() == [0, 4, 1]
    seen = {i.tobytes() for i in train.images} | {i.tobytes() for i in test.images}
    assert len(seen) == 26


def test_held_out_rows_are_disjoint_and_fixed() -> None:
    labels = np.array(list("aaaaabbbbbbbbbb"), dtype=object)
    kept, held = hold_out(labels, 0.4)
    assert sorted([*kept, *held]) == list(range(15))
    assert [(labels[held] == name).sum() for name in "ab"] == [2, 4]
    np.testing.assert_array_equal(held, hold_out(labels, 0.4)[1])


def test_number_folders_are_ordered_as_numbers(tmp_path: Path) -> None:
    for c in ("10", "9", "2"):
        save(picture(8, 8, 20, "L"), tmp_path / "d" / "train" / c / "0.png")
        save(picture(8, 8, 20, "L"), tmp_path / "d" / "test" / c / "0.png")
    assert UserSet("folder", str(tmp_path / "d")).load("train").class_names == ["2", "9", "10"]


def test_a_test_class_without_training_images(tmp_path: Path) -> None:
    folder = tree(tmp_path / "d", ["a", "b"], {"train": 2, "test": 1})
    save(picture(24, 24, 99), folder / "test" / "zebra" / "0.png")
    with pytest.raises(UserError, match=r"no training image \(zebra\).*unseen-test-classes"):
        UserSet("folder", str(folder), size=8).load("train")
    train = UserSet("folder", str(folder), size=8, unseen=True).load("train")
    assert train.class_names == ["a", "b", "zebra"]


def test_a_csv_of_file_names_and_labels(tmp_path: Path) -> None:
    lines = ["filename,label"]
    for i in range(10):
        save(picture(8, 8, 20 * i, "L"), tmp_path / "d" / "images" / f"{i}.png")
        lines.append(f"images/{i}.png,{'odd' if i % 2 else 'even'}")
    (tmp_path / "d" / "list.csv").write_text("\n".join(lines))
    user = UserSet("folder", str(tmp_path / "d"))
    train = user.load("train")
    assert train.class_names == ["even", "odd"]
    assert len(train.labels) == 8
    assert len(user.load("test").labels) == 2
    (tmp_path / "d" / "list.csv").write_text("\n".join([*lines, "images/gone.png,odd"]))
    with pytest.raises(UserError, match=r"line 12 names 'images/gone.png', which is not there"):
        replace(user, size=8).load("train")


# ---- tables


def test_string_labels_and_a_validation_split(tmp_path: Path) -> None:
    parquet(tmp_path / "d" / "data" / "train-00000-of-00001.parquet", ["cat", "dog"] * 5)
    parquet(tmp_path / "d" / "data" / "validation-00000-of-00001.parquet", ["dog", "cat"])
    user = UserSet("folder", str(tmp_path / "d"))
    assert user.load("train").class_names == ["cat", "dog"]
    assert user.load("test").labels.tolist() == [1, 0]


def test_grey_64_pixels_and_labels_with_gaps(tmp_path: Path) -> None:
    parquet(tmp_path / "d" / "train.parquet", [5, 1, 2] * 4, mode="L", size=64)
    parquet(tmp_path / "d" / "test.parquet", [2, 5, 1], mode="L", size=64)
    user = UserSet("folder", str(tmp_path / "d"))
    train = user.load("train")
    assert train.images.shape == (12, 1, 64, 64)
    assert train.class_names == ["1", "2", "5"]
    assert train.labels.tolist() == [2, 0, 1] * 4
    assert user.load("test").labels.tolist() == [1, 2, 0]


def test_columns_that_are_not_obvious(tmp_path: Path) -> None:
    parquet(tmp_path / "d" / "train.parquet", ["x", "y"] * 4, writer=list("pqpqrsrs"), n=[1] * 8)
    user = UserSet("folder", str(tmp_path / "d"))
    train = user.load("train")
    assert train.class_names == ["x", "y"]
    assert set(train.groups) == {"writer", "n"}
    other = replace(user, columns=Columns(label="writer")).load("train")
    assert other.class_names == list("pqrs")
    with pytest.raises(UserError, match=r"label-column = 'nosuch'.*writer"):
        replace(user, columns=Columns(label="nosuch")).load("train")


def test_a_hub_set_offline_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user has after one download: the Hub's folder in the cache, and no network."""
    repo = tmp_path / "hub" / "datasets--someone--things"
    parquet(repo / "snapshots" / "abc" / "data" / "train-0.parquet", ["u", "v"] * 5)
    loaded = datasets.load_dataset(str(repo / "snapshots" / "abc"), cache_dir=str(tmp_path / "hf"))

    def offline(name: str, config: str | None) -> Any:
        assert (name, config) == ("someone/things", None)
        return loaded

    monkeypatch.setattr(datasets, "load_dataset", offline)
    user = UserSet("hf:someone/things", "")
    assert user.load("train").class_names == ["u", "v"]
    assert len(user.load("test").labels) == 2


def test_a_hub_set_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"'hf:someone/nothing' cannot be loaded.*data-dir"):
        UserSet("hf:someone/nothing", "").load("train")


# ---- odd files


def test_odd_files_are_read_as_people_see_them(tmp_path: Path) -> None:
    left = Image.fromarray(
        np.repeat(np.array([[255, 0]], np.uint8), 2, 0).repeat(8, 0).repeat(8, 1)
    )
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    turned = save(left, tmp_path / "exif.jpg", exif=exif)
    assert pixels.decode(turned, 1, 0, "")[0, 8, 0] < 50
    cmyk = save(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), tmp_path / "c.jpg")
    assert np.abs(pixels.decode(cmyk, 3, 0, "")[:, 4, 4].astype(int) - [255, 0, 0]).max() < 60
    deep = save(Image.fromarray(np.full((8, 8), 32896, np.uint16)), tmp_path / "16.png")
    assert (pixels.decode(deep, 1, 0, "") == 128).all()
    assert pixels.channels(deep, "") == 1
    frames = [Image.new("RGB", (8, 8), c) for c in ("blue", "red")]
    moving = tmp_path / "m.gif"
    frames[0].save(moving, save_all=True, append_images=frames[1:])
    assert pixels.decode(moving, 3, 0, "")[:, 0, 0].tolist() == [0, 0, 255]


def test_resizing_keeps_the_middle() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    data = io.BytesIO()
    Image.fromarray(wide).save(data, "PNG")
    assert (pixels.decode(data.getvalue(), 3, 10, "") == 200).all()


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = tree(tmp_path / "d", ["a", "b"], {"train": 2, "test": 1})
    (folder / "train" / "b" / "torn.png").write_bytes(b"\x89PNG and no more")
    with pytest.raises(UserError, match=r"torn\.png: the image cannot be decoded"):
        UserSet("folder", str(folder), size=8).load("train")


def test_hidden_files_are_no_images_and_empty_classes_are_named(tmp_path: Path) -> None:
    folder = tree(tmp_path / "d", ["a", "b"], {"train": 2, "test": 1})
    save(picture(9, 9, 1), folder / "train" / "a" / ".thumb.png")
    save(picture(9, 9, 1), folder / "train" / ".trash" / "0.png")
    (folder / "train" / "a" / "notes.txt").write_text("no image")
    (folder / "train" / "void").mkdir()
    train = UserSet("folder", str(folder), size=8).load("train")
    assert train.class_names == ["a", "b"]
    assert len(train.labels) == 4
    assert empty_classes(folder, Columns()) == ["void"]
    assert "void" in preflight.label_notes(settings(folder, **{"image-size": 8}))[0]


def test_statistics_against_numpy() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2100, 3, 4, 5), dtype=np.uint8)
    mean, std = statistics(images)
    np.testing.assert_allclose(mean, (images / 255).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, (images / 255).std((0, 2, 3)), rtol=1e-9)
    assert statistics(np.full((2, 1, 2, 2), 7, np.uint8))[1] == (1.0,)


def test_a_changed_folder_is_read_again(tmp_path: Path) -> None:
    folder = tree(tmp_path / "d", ["a", "b"], {"train": 2, "test": 1})
    user = UserSet("folder", str(folder), size=8)
    assert len(user.load("train").labels) == 4
    shutil.copy(folder / "train/a/0.jpg", folder / "train/a/9.jpg")
    os.utime(folder / "train/a/9.jpg")
    assert len(user.load("train").labels) == 5


# ---- whole runs


def test_every_method_family_trains_on_colour_of_its_own(tmp_path: Path) -> None:
    from harness import Federation

    folder = tree(tmp_path / "d", [f"c{i}" for i in range(5)], {"train": 8, "test": 2})
    keys = {
        "dataset": "folder",
        "data-dir": str(folder),
        "image-size": 16,
        "strategy": "hfmds",
        "num-server-rounds": 3,
        "synthesis-every": 2,
        "synthesis-steps": 5,
        "model-width": 0.25,
        "partition": "iid",
        "refinement": "mrtf",
    }
    f = Federation(tmp_path / "r", 3, **keys).run()
    rows = f.rows()
    assert len(rows) == 3
    assert "privacy/psnr_mean" in rows[1]
    assert 0 <= rows[-1]["server/test_accuracy"] <= 1


def test_own_nodes_want_a_named_dataset(tmp_path: Path) -> None:
    folder = tree(tmp_path / "d", ["a", "b"], {"train": 2, "test": 1})
    with pytest.raises(UserError, match="partition = 'own' needs a named dataset"):
        build.spec(settings(folder, partition="own"))


def test_folder_without_a_folder() -> None:
    with pytest.raises(UserError, match="dataset = 'folder' needs data-dir"):
        build.spec(config.load(config.merged({"dataset": "folder"}, {})))
