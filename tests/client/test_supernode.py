"""Nodes with their own folders: the same bits as a simulation of those partitions, and mistakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image
from harness import Federation, OwnFederation
from PIL import Image as Picture

from fedsyn_flwr import build, config
from fedsyn_flwr.client.supernode import OwnData, own_data
from fedsyn_flwr.client.worker import Worker, place_of
from fedsyn_flwr.data import get_spec, load
from fedsyn_flwr.data.own import load_own
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.server.requests import reason_of
from fedsyn_flwr.server.roster import partitions_of

KEYS: dict[str, Any] = {
    "num-server-rounds": 3,
    "model-width": 0.25,
    "limit-train": 200,
    "synthesis-every": 2,
    "synthesis-per-client": 4,
    "synthesis-steps": 5,
    "privacy-epochs": 1,
}
DIGITS = [str(c) for c in range(10)]
SPEC = get_spec("digits")
CLIENTS = 3


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))


def write_parquet(folder: Path, images: np.ndarray, codes: np.ndarray, names: list[str]) -> Path:
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    pictures = [Picture.fromarray(image[0]) for image in images]
    rows = {"image": pictures, "label": codes.tolist()}
    folder.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(rows, features=features).to_parquet(folder / "rows.parquet")
    return folder


def write_folders(folder: Path, images: np.ndarray, names: list[str]) -> Path:
    for i, (image, name) in enumerate(zip(images, names, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Picture.fromarray(image).save(folder / name / f"{i:04}.png")
    return folder


def grey(n: int, size: int = 8) -> np.ndarray:
    return np.arange(n * size * size, dtype=np.uint8).reshape(n, size, size)


def simulated(folder: Path, **keys: Any) -> Federation:
    return Federation(folder, CLIENTS, **{**KEYS, **keys})


def sites_of(federation: Federation, folder: Path) -> Path:
    """The simulation's partitions as a folder per client."""
    train = load("digits", "train", limit=KEYS["limit-train"])
    for k, rows in enumerate(federation.worker.partitions):
        chosen = rows.numpy()
        write_parquet(folder / f"site-{k}", train.images[chosen], train.labels[chosen], DIGITS)
    return folder


@pytest.mark.parametrize("strategy", ["hfmds", "scaffold", "moon"])
def test_own_folders_give_the_bits_of_the_same_partitions(tmp_path: Path, strategy: str) -> None:
    expected = simulated(tmp_path / "simulated", strategy=strategy)
    sites = sites_of(expected, tmp_path / "sites")
    arriving = ["site-2", "site-0", "site-1"]
    keys = {**KEYS, "strategy": strategy, "limit-train": 0}
    found = OwnFederation(tmp_path / "own", sites, arriving, **keys).run()
    expected.run()
    for name, vector in expected.model.items():
        np.testing.assert_array_equal(found.model[name], vector, err_msg=name)


def test_a_nodes_state_is_kept_under_its_name(tmp_path: Path) -> None:
    sites = sites_of(simulated(tmp_path / "simulated"), tmp_path / "sites")
    keys = {**KEYS, "limit-train": 0, "strategy": "scaffold"}
    federation = OwnFederation(tmp_path / "own", sites, ["site-0", "site-1", "site-2"], **keys)
    federation.run()
    kept = (tmp_path / "own" / "state" / federation.strategy.codec.run).iterdir()
    assert sorted(path.name for path in kept) == ["client-site-0", "client-site-1", "client-site-2"]


def test_class_folders_take_the_runs_indices(tmp_path: Path) -> None:
    folder = write_folders(tmp_path / "a", grey(3), ["9", "2", "9"])
    found = load_own(SPEC, folder, DIGITS)
    by_label = {int(y): image[0] for y, image in zip(found.labels, found.images, strict=True)}
    assert sorted(found.labels.tolist()) == [2, 9, 9]
    np.testing.assert_array_equal(by_label[2], grey(3)[1])


def test_parquet_codes_go_by_name(tmp_path: Path) -> None:
    """A node that only has sevens and threes numbers them 0 and 1."""
    folder = write_parquet(tmp_path / "a", grey(3)[:, None], np.array([0, 1, 0]), ["7", "3"])
    assert load_own(SPEC, folder, DIGITS).labels.tolist() == [7, 3, 7]


def test_limit_keeps_the_first_rows(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "a", grey(3)[:, None], np.array([0, 1, 0]), ["7", "3"])
    assert load_own(SPEC, folder, DIGITS, limit=2).labels.tolist() == [7, 3]


def colour(folder: Path) -> Path:
    return write_folders(folder, np.zeros((1, 8, 8, 3), np.uint8), ["1"])


def two_sizes(folder: Path) -> Path:
    write_folders(folder, grey(1), ["1"])
    return write_folders(folder, grey(1, size=9), ["2"])


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda folder: None, "is not a folder on this node"),
    "empty": (lambda folder: folder.mkdir(), "holds neither <class>/*.png nor *.parquet"),
    "class": (
        lambda folder: write_folders(folder, grey(1), ["zebra"]),
        "a class 'zebra', which is not among the run's 10: 0, 1, 2",
    ),
    "class in parquet": (
        lambda folder: write_parquet(folder, grey(1)[:, None], np.array([0]), ["zebra"]),
        "a class 'zebra', which is not among",
    ),
    "channels": (colour, "0000.png has 3 channel(s), the run's images have 1"),
    "sizes": (two_sizes, "mixes image sizes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_is_one_line_that_names_the_node(case: str, tmp_path: Path) -> None:
    make, complaint = WRONG[case]
    make(tmp_path / "a")
    with pytest.raises(UserError) as error:
        Worker(config.load(config.merged({"partition": "own"})), OwnData(tmp_path / "a", "north"))
    assert str(error.value).startswith("SuperNode north: ")
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_node_config() -> None:
    assert own_data({"data-path": "/data/site-a"}) == OwnData(Path("/data/site-a"), "site-a")
    named = own_data({"data-path": "/data", "node-name": 7})
    assert named == OwnData(Path("/data"), "7")


@pytest.mark.parametrize(
    ("node", "partition", "complaint"),
    [
        ({"data-path": "/data"}, "iid", "this node has no partition"),
        ({"partition-id": 0, "num-partitions": 2}, "own", "data-path = ''"),
        ({"data-path": "site-a"}, "own", "data-path = 'site-a'"),
        ({"data-path": "/data", "node-name": "../x"}, "own", "node-name = '../x'"),
    ],
)
def test_a_node_that_does_not_fit_the_run(node: Any, partition: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        place_of(node, {"partition": partition})


def test_places_follow_names_not_arrival() -> None:
    arriving = {node: {"node-name": name} for node, name in (("9", "b"), ("5", "c"), ("7", "a"))}
    assert partitions_of(arriving, None) == {"7": 0, "9": 1, "5": 2}


def test_two_nodes_of_one_name() -> None:
    with pytest.raises(UserError, match="2 SuperNodes are called a: give each another node-name"):
        partitions_of({"1": {"node-name": "a"}, "2": {"node-name": "a"}}, None)


def test_a_node_with_images_of_another_size() -> None:
    answer = {"node-name": "a", "image-shape": "1x9x9"}
    with pytest.raises(UserError, match=r"SuperNode a: its images are 1x9x9 .* 1x8x8"):
        partitions_of({"1": answer}, (1, 8, 8))


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({}, "num-clients = 0"),
        ({"num-clients": 2, "labels": "a,b"}, "has 2 different names, digits has 10 classes"),
        ({"num-clients": 2, "labels": "9,8,7,6,5,4,3,2,1,0"}, "set labels = '0,1,2,3"),
    ],
)
def test_wrong_run_for_own_data(keys: Any, complaint: str) -> None:
    from fedsyn_flwr import preflight

    with pytest.raises(UserError, match=complaint):
        preflight.check_own(config.load(config.merged({"partition": "own"}, keys)))


def test_label_list() -> None:
    names = "zero, one,two,three,four,five,six,seven,eight,nine"
    settings = config.load(config.merged({"labels": names}))
    assert build.label_list(settings)[:2] == ["zero", "one"]
    assert build.label_list(config.load(config.merged({}))) == DIGITS


@pytest.mark.parametrize(
    ("kind", "said", "expected"),
    [
        ("fedsyn_flwr.errors.UserError", "site-b's 'zebra' is wrong", "site-b's 'zebra' is wrong"),
        ("ZeroDivisionError", "division by zero", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_nodes_error_is_told_without_its_wrapping(kind: str, said: str, expected: str) -> None:
    """As a SuperNode of flwr 1.42 sends it."""
    message = (
        f"Message contains an Error (reason: <class '{kind}'>:<'{said}'>). "
        "It originated during client-side execution of a message."
    )
    assert reason_of(message) == expected


def test_nodes_that_bring_a_test_split(tmp_path: Path) -> None:
    """One brings 12 images, the other holds out a quarter of its 40; the server has none."""
    images = load("digits", "train").images[:92, 0]
    names = [str(c % 4) for c in range(92)]
    write_folders(tmp_path / "sites" / "a" / "train", images[:40], names[:40])
    write_folders(tmp_path / "sites" / "a" / "test", images[40:52], names[40:52])
    write_folders(tmp_path / "sites" / "b", images[52:], names[52:])
    keys = {**KEYS, "strategy": "fedavg", "server-data": "none", "client-test-fraction": 0.25}
    run = OwnFederation(tmp_path / "out", tmp_path / "sites", ["a", "b"], **keys).run()
    assert [len(p.worker.rows(0)) for p in run.proxies] == [40, 30]
    assert [len(p.worker.held_out(0)[1]) for p in run.proxies] == [12, 10]
    test, _ = run.proxies[0].worker.held_out(0)
    assert sorted(test.images[:, 0].flatten(1).sum(1).tolist()) == sorted(
        images[40:52].reshape(12, -1).sum(1).tolist()
    )
    assert [row["clients/test_examples"] for row in run.rows()] == [22, 22, 22]
    only = {**keys, "client-test-fraction": 0.0}
    run = OwnFederation(tmp_path / "only", tmp_path / "sites", ["a", "b"], **only).run()
    assert [row["clients/test_examples"] for row in run.rows()] == [12, 12, 12]
    assert [len(p.worker.rows(0)) for p in run.proxies] == [40, 40]
