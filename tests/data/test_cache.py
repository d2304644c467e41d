"""The decode cache: once per machine, whoever asks, and never half an entry."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsyn_flwr.data import cache
from fedsyn_flwr.data.sources import DECODES, load
from fedsyn_flwr.errors import UserError

from . import tables

_LOAD = (
    "from fedsyn_flwr.data.sources import load, DECODES\n"
    "s = load('digits', 'train')\n"
    "print(DECODES['count'], len(s.labels))\n"
)


def _start(cache_dir: Path, code: str = _LOAD) -> "subprocess.Popen[str]":
    env = os.environ | {
        "FEDSYN_CACHE_DIR": str(cache_dir),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, cwd=root, text=True, stdout=subprocess.PIPE
    )


def test_second_load_decodes_nothing(tmp_path: Path) -> None:
    before = DECODES["count"]
    first = load("digits", "train", cache_dir=tmp_path)
    second = load("digits", "train", cache_dir=tmp_path)
    assert DECODES["count"] == before + 1
    np.testing.assert_array_equal(first.images, second.images)
    assert not second.images.flags.writeable
    assert isinstance(second.images, np.memmap)


def test_another_process_decodes_nothing(tmp_path: Path) -> None:
    load("digits", "train", cache_dir=tmp_path)
    out, _ = _start(tmp_path).communicate(timeout=60)
    assert out.split() == ["0", "1437"]


def test_two_processes_at_once_decode_once(tmp_path: Path) -> None:
    both = [_start(tmp_path), _start(tmp_path)]
    counts = sorted(p.communicate(timeout=60)[0].split()[0] for p in both)
    assert counts == ["0", "1"]


def test_importing_needs_torch_and_numpy_only() -> None:
    code = (
        "import sys\n"
        "import fedsyn_flwr.data.sources, fedsyn_flwr.data.partition\n"
        "import fedsyn_flwr.data.resident, fedsyn_flwr.data.sources\n"
        "lazy = 'datasets flwr_datasets sklearn filelock pyarrow PIL matplotlib'.split()\n"
        "print([name for name in lazy if name in sys.modules])\n"
    )
    out, _ = _start(Path("unused"), code).communicate(timeout=60)
    assert out.strip() == "[]"


def test_key_follows_split_limit_and_files(tmp_path: Path) -> None:
    path = tmp_path / "d/train-0.parquet"
    data = tables.dataset("svhn", tables.pixels(6, 3), [0, 1, 2, 3, 4, 5])
    tables.write_parquet(path, data)
    where, cache_dir, start = str(tmp_path / "d"), tmp_path / "c", DECODES["count"]
    for limit in (0, 2, 0):
        load("svhn", "train", data_dir=where, limit=limit, cache_dir=cache_dir)
    assert DECODES["count"] == start + 2
    tables.write_parquet(path, tables.dataset("svhn", tables.pixels(6, 3, seed=5), [9] * 6))
    changed = load("svhn", "train", data_dir=where, cache_dir=cache_dir)
    assert DECODES["count"] == start + 3
    assert changed.labels.tolist() == [9] * 6


@pytest.mark.parametrize("file", ["images.npy", "rows.npz"])
def test_a_cut_entry_is_decoded_again(file: str, tmp_path: Path) -> None:
    whole = np.array(load("digits", "test", cache_dir=tmp_path).images)
    (entry,) = [p for p in tmp_path.iterdir() if p.is_dir()]
    content = (entry / file).read_bytes()
    (entry / file).unlink()  # not truncated in place: the first load still maps the old file
    (entry / file).write_bytes(content[: len(content) // 2])
    before = DECODES["count"]
    np.testing.assert_array_equal(load("digits", "test", cache_dir=tmp_path).images, whole)
    assert DECODES["count"] == before + 1


def test_remains_of_a_killed_process_do_not_matter(tmp_path: Path) -> None:
    load("digits", "test", cache_dir=tmp_path)
    (entry,) = [p for p in tmp_path.iterdir() if p.is_dir()]
    entry.rename(entry.with_name(entry.name + ".partial"))
    assert len(load("digits", "test", cache_dir=tmp_path).labels) == 360
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [entry.name]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write the data cache.*FEDSYN_CACHE_DIR"):
        load("digits", "train", cache_dir=tmp_path / "file" / "cache")


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path))
    assert cache.default_cache_dir() == tmp_path
    monkeypatch.delenv("FEDSYN_CACHE_DIR")
    assert cache.default_cache_dir() == Path.home() / ".cache/fedsyn-flwr/data"
