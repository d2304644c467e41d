"""Partitions are drawn once, and what is read back is what was drawn."""

import numpy as np
import pytest

from fedsyn_flwr.data import partition_cache
from fedsyn_flwr.data.partition import SCHEMES, make_partitions
from fedsyn_flwr.data.partition_cache import cached_partitions
from fedsyn_flwr.errors import UserError

LABELS = np.random.default_rng(0).integers(0, 10, 400)
GROUPS = np.arange(400) % 40


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


@pytest.fixture
def drawn(monkeypatch):
    """The calls of `make_partitions`."""
    calls = []

    def counting(*args, **kwargs):
        calls.append(kwargs)
        return make_partitions(*args, **kwargs)

    monkeypatch.setattr(partition_cache, "make_partitions", counting)
    return calls


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_second_time_they_are_read(tmp_path, drawn, scheme):
    options = {
        "seed": 3,
        "dirichlet_alpha": 0.01,
        "classes_per_client": 6,
        "groups": GROUPS % 5 if scheme == "csv" else GROUPS,
    }
    expected = make_partitions(LABELS, 5, scheme, **options)
    for _ in range(2):
        assert same(cached_partitions(LABELS, 5, scheme, root=tmp_path, **options), expected)
    assert len(drawn) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_whatever_they_depend_on_tells_them_apart(tmp_path, drawn, monkeypatch):
    def draw(labels=LABELS, clients=5, scheme="dirichlet", groups=None, seed=0, **options):
        cached_partitions(
            labels, clients, scheme, root=tmp_path, groups=groups, seed=seed, **options
        )

    changed = np.where(np.arange(400) == 7, (LABELS + 1) % 10, LABELS)
    draw()
    draw(labels=changed)
    draw(clients=6)
    draw(scheme="iid")
    draw(seed=1)
    draw(dirichlet_alpha=0.5)
    draw(scheme="natural", groups=GROUPS)
    draw(scheme="natural", groups=GROUPS % 20)
    monkeypatch.setattr(partition_cache, "version", lambda name: "99")
    draw()
    assert len(drawn) == 9


def test_a_damaged_file_is_drawn_again(tmp_path, drawn):
    cached_partitions(LABELS, 5, "iid", root=tmp_path, seed=0)
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    parts = cached_partitions(LABELS, 5, "iid", root=tmp_path, seed=0)
    assert same(parts, make_partitions(LABELS, 5, "iid", seed=0))
    assert len(drawn) == 2
    assert path.read_bytes() == whole


def test_mistakes_are_told_every_time_and_nothing_is_kept(tmp_path):
    for _ in range(2):
        with pytest.raises(UserError, match="cannot share 400 samples"):
            cached_partitions(LABELS, 401, "iid", root=tmp_path, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    parts = cached_partitions(LABELS, 5, "iid", root=tmp_path / "file" / "below", seed=0)
    assert same(parts, make_partitions(LABELS, 5, "iid", seed=0))
