"""What is said of labels before anything is trained."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsyn_flwr.config import load, merged
from fedsyn_flwr.preflight import label_notes


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of an ImageFolder with these classes in its two splits, taken for MNIST."""
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))

    def of(train: Sequence[int], test: Sequence[int]) -> list[str]:
        for split, classes in (("train", train), ("test", test)):
            for c in classes:
                folder = tmp_path / "images" / split / str(c)
                folder.mkdir(parents=True)
                for i in range(3):
                    Image.fromarray(np.full((28, 28), 20 * c + i, np.uint8)).save(
                        folder / f"{i}.png"
                    )
        return label_notes(load(merged({"dataset": "mnist", "data-dir": str(tmp_path / "images")})))

    return of


def test_nothing_where_every_class_is_trained(notes) -> None:
    assert notes(range(10), range(10)) == []


def test_classes_without_training_images_are_named(notes) -> None:
    (line,) = notes([0, 1, 2], [1, 2])
    assert line == (
        "note: 7 of the 10 classes of mnist have no training image (3, 4, 5, 6, 7, 8, 9)"
    )


def test_so_are_test_classes_that_nobody_can_learn(notes) -> None:
    (line,) = notes(range(9), range(10))
    assert line.endswith("image (9); 1 of them have test images, which nobody can learn")
