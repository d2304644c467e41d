"""Each wrong folder or argument is one line that names it, and leaves nothing half-written."""

from pathlib import Path

import pytest

from fedsyn_flwr.data.sources import load
from fedsyn_flwr.errors import UserError

from . import tables


def _wrong(root: Path, what: str) -> None:
    import datasets as hf
    import pyarrow.parquet as pq

    train = root / "train-0.parquet"
    images = tables.pixels(4, 3)
    if what == "corrupt":
        root.mkdir()
        train.write_bytes(b"PAR1 but not really")
    elif what == "truncated":
        tables.write_parquet(train, tables.dataset("svhn", images, [0] * 4))
        content = bytearray(train.read_bytes())
        content[4:200] = b"\xff" * 196
        train.write_bytes(content)
    elif what == "two labels":
        data = tables.dataset("cifar100", images, [0] * 4).rename_column("fine_label", "fine")
        tables.write_parquet(train, data)
    elif what == "label range":
        tables.write_parquet(train, tables.dataset("cifar100", images, [1, 2, 99, 4]))
    elif what == "mixed sizes":
        data = hf.concatenate_datasets(
            [tables.dataset("svhn", tables.pixels(2, 3, size=s), [0, 1]) for s in (8, 9)]
        )
        tables.write_parquet(train, data)
    elif what == "no image":
        tables.write_parquet(train, hf.Dataset.from_dict({"label": [0]}))
    elif what == "bad png":
        (root / "train/a").mkdir(parents=True)
        (root / "train/a/x.png").write_bytes(b"not a png")
    elif what == "empty":
        root.mkdir()
    elif what == "no rows":
        tables.write_parquet(train, tables.dataset("svhn", images, [0] * 4))
        pq.write_table(pq.read_table(train).slice(0, 0), train)


@pytest.mark.parametrize(
    ("what", "name", "message"),
    [
        ("absent", "svhn", "not a folder"),
        ("empty", "svhn", "no recognised layout"),
        ("corrupt", "svhn", "train-0.parquet is not a readable parquet"),
        ("truncated", "svhn", "train-0.parquet is not a readable parquet"),
        ("two labels", "cifar100", "img, fine, coarse_label"),
        ("label range", "cifar10", r"label 99 in row 2 is outside 0\.\.9"),
        ("mixed sizes", "svhn", "row 0 is 8x8, row 2 is 9x9"),
        ("no image", "svhn", "0 image columns among label"),
        ("bad png", "svhn", "x.png: the image cannot be decoded"),
        ("no rows", "svhn", "no rows"),
    ],
)
def test_wrong_folder(what: str, name: str, message: str, tmp_path: Path) -> None:
    root = tmp_path / "wrong"
    _wrong(root, what)
    if what == "label range":  # cifar10's own label column, so that its range is what is checked
        import datasets

        data = datasets.Dataset.from_parquet(str(root / "train-0.parquet"))
        data = data.rename_column("fine_label", "label")
        tables.write_parquet(root / "train-0.parquet", data)
    with pytest.raises(UserError, match=message) as caught:
        load(name, "train", data_dir=str(root))
    assert "\n" not in str(caught.value)
    assert "wrong" in str(caught.value)
    cache = tmp_path / "cache"
    left = [p for p in cache.iterdir() if p.suffix != ".lock"] if cache.exists() else []
    assert left == []


def test_missing_split(tmp_path: Path) -> None:
    root, _ = tables.folder(tmp_path / "d", "svhn")
    (root / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(UserError, match=r"d has no test-\*\.parquet"):
        load("svhn", "test", data_dir=str(root))
    tables.image_folder(tmp_path / "i", ["a"])
    (tmp_path / "i/test").rename(tmp_path / "i/testing")
    with pytest.raises(UserError, match="i has no images in test/"):
        load("svhn", "test", data_dir=str(tmp_path / "i"))


def test_wrong_names_and_limits() -> None:
    with pytest.raises(UserError, match=r"'mnits' is unknown; choose .*did you mean mnist"):
        load("mnits", "train")
    with pytest.raises(UserError, match="'valid' is unknown"):
        load("digits", "valid")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="limit -1 is negative"):
        load("digits", "train", limit=-1)
