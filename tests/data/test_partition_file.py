"""A partition of one's own: what a file may say, and each way in which it can be wrong."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsyn_flwr import build
from fedsyn_flwr.config import load, merged
from fedsyn_flwr.data.partition_file import read_clients
from fedsyn_flwr.errors import UserError


def written(folder: Path, text: str) -> Path:
    path = folder / "clients.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "client\n1\n0\n1\n",
        "row,client\n2,1\n0,1\n1,0\n",
        "name,client,row\nx,0,1\ny,1,0\nz,1,2",  # other columns and orders, no last line break
        "\ufeffrow, client\r\n0, 1\r\n1, 0\r\n\r\n2, 1\r\n",  # as spreadsheets write it
    ],
)
def test_both_ways_of_saying_it(tmp_path: Path, text: str) -> None:
    assert read_clients(written(tmp_path, text), 3, 2).tolist() == [1, 0, 1]


@given(owner=st.lists(st.integers(0, 4), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_whatever_order_the_rows_have(
    tmp_path_factory: pytest.TempPathFactory, owner: list[int], seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(owner))
    lines = "".join(f"{row},{owner[row]}\n" for row in order)
    path = written(tmp_path_factory.mktemp("csv"), f"row,client\n{lines}")
    assert read_clients(path, len(owner), 5).tolist() == owner


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the columns (none); the first line must name client"),
        ("0\n1\n0\n", "has the columns 0; the first line must name client"),
        ("row,client\n0,1\n1,0\n", "gives 1 of 3 rows to nobody, the first is row 2"),
        ("client\n0\n1\n", "gives 1 of 3 rows to nobody, the first is row 2"),
        ("row,client\n0,1\n1,0\n0,0\n", "line 4: row 0 was given to client 1 already"),
        ("row,client\n3,1\n", "line 2: row 3 is not there; rows are 0 to 2"),
        ("row,client\n-1,1\n", "line 2: row -1 is not there"),
        ("client\n0\n1\n1\n1\n", "line 5: row 3 is not there"),
        ("row,client\n0,2\n", "line 2: client 2 is not there; clients are 0 to 1"),
        ("row,client\n0,-1\n", "line 2: client -1 is not there"),
        ("row,client\n0,ann\n", "line 2: client = 'ann' must be a whole number"),
        ("row,client\n0.5,1\n", "line 2: row = '0.5' must be a whole number"),
        ("row,client\n0\n", "line 2: client = '' must be a whole number"),
        (f"client\n{10**30}\n", f"line 2: client {10**30} is not there"),
    ],
)
def test_one_line_for_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_clients(written(tmp_path, text), 3, 2)
    assert "\n" not in str(caught.value)
    assert "clients.csv" in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(b"client\n\xff\xfe\x00\n")
    for path in (tmp_path / "a.csv", tmp_path, tmp_path / "b.csv"):
        with pytest.raises(UserError, match="cannot be read") as caught:
            read_clients(path, 3, 2)
        assert "\n" not in str(caught.value)


def test_a_run_deals_its_rows_so(tmp_path: Path) -> None:
    """Also after the file has changed: what was drawn before is not read again."""
    keys = {"partition": "csv", "partition-file": str(tmp_path / "clients.csv"), "limit-train": 6}
    config = load(merged(keys))
    train = build.images(config, "train")
    for owner in ([0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]):
        written(tmp_path, "client\n" + "".join(f"{k}\n" for k in owner))
        parts = build.partitions(config, train, 2)
        assert [p.tolist() for p in parts] == [
            np.flatnonzero(np.array(owner) == k).tolist() for k in (0, 1)
        ]


@pytest.mark.parametrize(("path", "message"), [("", "needs partition-file"), ("a", "is relative")])
def test_keys_that_do_not_name_a_file(path: str, message: str) -> None:
    config = load(merged({"partition": "csv", "partition-file": path}))
    with pytest.raises(UserError, match=message):
        build.partitions(config, build.images(config, "train"), 2)
