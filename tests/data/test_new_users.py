"""What new users bring: odd names, links, CSVs of other programs, columns of other types."""

import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsyn_flwr import build, config, preflight
from fedsyn_flwr.data.user_set import UserSet
from fedsyn_flwr.errors import UserError

from .own_sets import parquet, picture, save, settings, tree


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))


def classes_of(root: Path, **keys: Any) -> tuple[list[str], int, int]:
    user = UserSet("folder", str(root), **keys)
    train, test = user.load("train"), user.load("test")
    return train.class_names, len(train.labels), len(test.labels)


def few(root: Path, *folders: str, count: int = 5) -> Path:
    for folder in folders:
        for i in range(count):
            save(picture(8, 8, 10 + i), root / folder / f"{i}.png")
    return root


def listed(file: Path, text: str, encoding: str = "utf-8") -> Path:
    """A CSV over ten images beside it."""
    few(file.parent, "i", count=10)
    file.write_bytes(text.encode(encoding))
    return file.parent


ROWS = "\n".join(f"i/{i}.png,{'ab'[i % 2]}" for i in range(10))


def test_classes_named_as_splits_are(tmp_path: Path) -> None:
    assert classes_of(few(tmp_path / "a", "train", "test", "cat")) == (
        ["cat", "test", "train"],
        12,
        3,
    )
    inside = few(tmp_path / "b", "train/train", "train/test", "test/train", "test/test")
    assert classes_of(inside) == (["test", "train"], 10, 10)


def test_what_is_no_class_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has one class, 'archive'"):
        classes_of(few(tmp_path / "a", "archive/train/x", "archive/test/x"))
    folder = few(tmp_path / "b", "training_set/x", "training_set/y", "test_set/x", "test_set/y")
    notes = preflight.label_notes(settings(folder))
    assert notes == [
        "note: all classes have the folders x, y; if these are the classes, name the folders "
        "above them train and test"
    ]
    with pytest.raises(UserError, match=r"test-fraction = 0\.2 of each class is no image"):
        classes_of(few(tmp_path / "c", "x", "y", count=1))


def test_class_order_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """As numbers 01, 1 and 001 are equal, and a set of strings has another order every time."""
    names = ["1", "01", "001", "+1", "--1"]
    assert classes_of(few(tmp_path / "a", *names[:3]))[0] == ["001", "01", "1"]
    assert classes_of(few(tmp_path / "b", *names))[0] == sorted(names)


def test_links_are_followed_and_missed(tmp_path: Path) -> None:
    real = few(tmp_path / "real", "train/a", "train/b", "test/a", "test/b")
    root = tmp_path / "links"
    root.mkdir()
    for split in ("train", "test"):
        (root / split).symlink_to(real / split)
    assert classes_of(root) == (["a", "b"], 10, 10)
    shutil.copy(real / "train/a/0.png", real / "train/a/more.png")
    assert classes_of(root)[1] == 11
    (real / "train/a/again").symlink_to(real / "train/a")
    (real / "train/b/deep").symlink_to(real / "test/b")
    assert classes_of(root)[1] == 16
    (real / "train/a/gone.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"gone\.png: the image cannot be decoded"):
        classes_of(root)


@pytest.mark.parametrize(
    "text",
    [
        "filename,label\n" + ROWS,
        "\ufefffilename, label\r\n" + ROWS.replace("\n", "\r\n\r\n").replace(",", ", "),
        ("filename;label\n" + ROWS).replace(",", ";"),
        ("Label\tImage\n" + "\n".join("\t".join(r.split(",")[::-1]) for r in ROWS.splitlines())),
    ],
    ids=["plain", "windows", "semicolons", "tabs"],
)
def test_csv_as_programs_write_them(text: str, tmp_path: Path) -> None:
    assert classes_of(listed(tmp_path / "d" / "list.csv", text)) == (["a", "b"], 8, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS, r"image-column = '' does not say.*i/0\.png, a"),
        ("filename\ni/0.png\n", "label-column = '' does not say"),
        ("filename,label\n" + ROWS + "\n\ni/1.png,  ", "line 13 has no label"),
        ("filename,label\n" + ROWS + "\ni/1.png,a, b", "line 12 has 3 values for 2 columns"),
        ("filename,label\n" + "x" * 5000 + ",a", "line 2 names 'xxx.*', which is not there"),
        ("filename,label\n", r"list\.csv has no rows"),
    ],
)
def test_wrong_csv(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        classes_of(listed(tmp_path / "d" / "list.csv", text))


def test_csv_in_another_encoding(tmp_path: Path) -> None:
    folder = listed(tmp_path / "d" / "list.csv", "filename,label\ni/0.png,é", "latin-1")
    with pytest.raises(UserError, match=r"list\.csv is not a CSV in UTF-8"):
        classes_of(folder)


def test_a_csv_per_split_beside_the_images(tmp_path: Path) -> None:
    folder = listed(tmp_path / "d" / "train.csv", "filename,label\n" + ROWS)
    (folder / "test.csv").write_text("filename,label\ni/0.png,a\ni/1.png,b\ni/3.png,b")
    assert classes_of(folder) == (["a", "b"], 10, 3)
    (folder / "test.csv").rename(folder / "more.csv")
    (folder / "train.csv").rename(folder / "some.csv")
    with pytest.raises(UserError, match=r"has more\.csv, some\.csv: leave one"):
        classes_of(folder)


def test_owners_in_a_csv(tmp_path: Path) -> None:
    rows = "\n".join(f"{row},w{i % 3}," for i, row in enumerate(ROWS.splitlines()))
    folder = listed(tmp_path / "d" / "train.csv", "filename,label,writer,nothing\n" + rows)
    (folder / "test.csv").write_text("filename,label\ni/0.png,a\ni/1.png,b")
    train = UserSet("folder", str(folder)).load("train")
    assert {n: g.tolist() for n, g in train.groups.items()} == {"writer": [0, 1, 2] * 3 + [0]}
    natural = settings(folder, partition="natural", **{"natural-column": "writer"})
    parts = build.partitions(natural, build.images(natural, "train"), 3)
    assert sorted(map(len, parts)) == [3, 3, 4]


def test_a_csv_of_something_else_beside_classes(tmp_path: Path) -> None:
    folder = few(tmp_path / "d", "train/a", "train/b", "test/a", "test/b")
    for place in (folder, folder / "train", folder / "test"):
        (place / "sizes.csv").write_text("a,b\n1,2\n")
    assert classes_of(folder) == (["a", "b"], 10, 10)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (pa.array([0.0, 1.0] * 5), ["0", "1"]),
        (pa.array([True, False] * 5), ["False", "True"]),
        (pa.array(["x", "y"] * 5).dictionary_encode(), ["x", "y"]),
        (pa.array(["x", "y"] * 5, pa.large_string()), ["x", "y"]),
        (pa.array([7, 3] * 5, pa.uint64()), ["3", "7"]),
    ],
    ids=str,
)
def test_label_types(labels: Any, names: list[str], tmp_path: Path) -> None:
    """Beside another column that would do, which the labels' name goes before."""
    parquet(tmp_path / "d" / "train.parquet", labels, writer=[1, 2] * 5, box=[[1, 2]] * 10)
    assert classes_of(tmp_path / "d") == (names, 8, 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (pa.array([0.5, 1.0] * 5), "labels are fractions"),
        (pa.array([[1], [2]] * 5), "'label' holds list<.*>, no labels; set label-column"),
        (pa.array([b"a", b"b"] * 5), "'label' holds binary"),
        (pa.array(["a", None] * 5), "'label' is empty in 5 rows"),
        (pa.array(["a", " "] * 5), "'label' is empty in 5 rows"),
        (pa.array([1.0, float("nan")] * 5), "'label' is empty in 5 rows"),
        (pa.array(["a", None] * 5).dictionary_encode(), "'label' is empty in 5 rows"),
    ],
)
def test_what_is_no_label(labels: Any, message: str, tmp_path: Path) -> None:
    parquet(tmp_path / "d" / "train.parquet", labels)
    with pytest.raises(UserError, match=message):
        classes_of(tmp_path / "d")


def rewrite(file: Path, images: Any) -> None:
    pq.write_table(pq.read_table(file).set_column(0, "image", images), file)


def test_image_columns_of_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "d" / "train.parquet"
    parquet(file, ["x", "y"] * 5)
    images = pq.read_table(file)["image"].to_pylist()
    expected = UserSet("folder", str(tmp_path / "d")).load("train").images
    large = pa.struct([("path", pa.string()), ("bytes", pa.large_binary())])
    for kind, values in ((pa.large_binary(), [i["bytes"] for i in images]), (large, images)):
        rewrite(file, pa.array(values, kind))
        loaded = UserSet("folder", str(tmp_path / "d")).load("train").images
        np.testing.assert_array_equal(loaded, expected)


@pytest.mark.parametrize("none", [None, {"bytes": None, "path": None}])
def test_rows_without_an_image(none: Any, tmp_path: Path) -> None:
    file = tmp_path / "d" / "train.parquet"
    parquet(file, ["x", "y"] * 5)
    images = pq.read_table(file)["image"]
    rewrite(file, pa.array([*images.to_pylist()[:3], none, *images.to_pylist()[4:]], images.type))
    with pytest.raises(UserError, match="row 3: there is no image"):
        classes_of(tmp_path / "d")


def test_splits_of_parquet_files(tmp_path: Path) -> None:
    """Underlines, spaces, a folder that is called test: none mixes test images with the others."""
    for names in (("train_0", "test_0"), ("my train", "the test")):
        root = tmp_path / names[0] / "test"
        parquet(root / f"{names[0]}.parquet", ["x", "y"] * 5)
        parquet(root / f"{names[1]}.parquet", ["x", "y"])
        assert classes_of(root) == (["x", "y"], 10, 2)
    parquet(root / "others.parquet", ["x", "y"])
    with pytest.raises(UserError, match=r"others\.parquet belongs to no split"):
        classes_of(root)


def test_parquet_files_that_differ(tmp_path: Path) -> None:
    parquet(tmp_path / "d" / "train-0.parquet", ["x", "y"])
    parquet(tmp_path / "d" / "train-1.parquet", [1, 2])
    with pytest.raises(UserError, match="differ in the columns label or their types"):
        classes_of(tmp_path / "d")


def test_a_hub_set_of_image_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a repository of image files, `datasets` keeps the paths and no bytes."""
    few(tmp_path / "d", "train/cat", "train/dog", "test/cat", "test/dog")
    loaded = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "d"), cache_dir=str(tmp_path / "hf")
    )
    assert loaded["train"].with_format("arrow")[0]["image"][0]["bytes"].as_py() is None
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: loaded)
    train = UserSet("hf:someone/files", "").load("train")
    assert train.class_names == ["cat", "dog"]
    assert train.images.shape == (10, 3, 8, 8)


def test_a_hub_name_that_is_none() -> None:
    with pytest.raises(UserError, match="'hf:': write hf:owner/name"):
        UserSet("hf:", "").load("train")


def test_no_transductive_set_of_ones_own(tmp_path: Path) -> None:
    folder = tree(tmp_path / "d", ["a", "b"], {"train": 2, "test": 1})
    keys = {"image-size": 8, "transductive-data-dir": str(folder)}
    with pytest.raises(UserError, match=r"'folder' is none of `fedsyn datasets`.*test split"):
        build.images(settings(folder, **keys), "test")


def test_grey_images_for_a_dataset_in_colour(tmp_path: Path) -> None:
    numbers = [str(c) for c in range(10)]
    for mode, notes in (("L", [True]), ("RGB", [])):
        folder = tmp_path / mode
        for place in (f"{s}/{c}" for s in ("train", "test") for c in numbers):
            save(picture(32, 32, 9, mode), folder / place / "0.png")
        run = config.load(config.merged({"dataset": "cifar10", "data-dir": str(folder)}, {}))
        assert [("1 channel, cifar10 has 3" in n) for n in preflight.label_notes(run)] == notes


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = few(tmp_path / "d", "a", "b")
    listing = Path.iterdir

    def guarded(self: Path) -> Any:
        if self == folder / "b":
            raise PermissionError(13, "Permission denied")
        return listing(self)

    monkeypatch.setattr(Path, "iterdir", guarded)
    with pytest.raises(UserError, match=r"/b cannot be read \(Permission denied\)"):
        classes_of(folder)
