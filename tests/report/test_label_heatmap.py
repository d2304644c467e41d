"""The heat map is a PNG in which more samples are darker and none is white."""

from pathlib import Path

import numpy as np
import pytest

from fedsyn_flwr.report.label_heatmap import _step, save_heatmap


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (10, 10), (100, 100)])
def test_png_is_written_whole(clients: int, classes: int, tmp_path: Path) -> None:
    from PIL import Image

    table = np.random.default_rng(0).integers(0, 50, (clients, classes))
    path = tmp_path / "new/heat.png"
    save_heatmap(table, [f"class {c}" for c in range(classes)], path, "title")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width > 500
    assert [p.name for p in path.parent.iterdir()] == ["heat.png"]


def test_full_cells_are_darker_than_empty_ones(tmp_path: Path) -> None:
    from PIL import Image

    def darkness(count: int) -> float:
        table = np.full((20, 20), count)
        table[0, 0] = 1000
        save_heatmap(table, [str(c) for c in range(20)], tmp_path / "h.png", "")
        with Image.open(tmp_path / "h.png") as image:
            grey = np.asarray(image.convert("L"), dtype=float)
        return 255 - float(np.median(grey[100:-100, 100:600]))

    assert darkness(0) == 0 < darkness(1) < darkness(1000)


def test_an_empty_table_is_drawn(tmp_path: Path) -> None:
    save_heatmap(np.zeros((3, 2), dtype=int), ["a", "b"], tmp_path / "h.png", "nothing")
    assert (tmp_path / "h.png").stat().st_size > 1000


def test_ticks_are_at_round_distances() -> None:
    assert [_step(k) for k in (26, 100, 101, 1000, 5000)] == [2, 5, 10, 50, 500]
