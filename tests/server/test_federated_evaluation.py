"""Evaluation by the clients: its figures against scikit-learn's, its answers, runs without a test
set on the server.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server import Server
from harness import Federation, LocalProxy
from sklearn.metrics import accuracy_score, log_loss, recall_score

from fedsyn_flwr import config
from fedsyn_flwr.client.worker import Worker
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.client_scores import RIGHT, SEEN, TEST_LOSS, Scores
from fedsyn_flwr.report import measures
from fedsyn_flwr.server.federated_evaluation import figures

KEYS: dict[str, Any] = {
    "strategy": "fedavg",
    "num-server-rounds": 2,
    "limit-train": 300,
    "limit-test": 60,
    "model-width": 0.25,
    "dirichlet-alpha": 0.5,
    "client-test-fraction": 0.25,
}
ALONE = {**KEYS, "server-data": "none"}
CLIENTS = 4


def probabilities(run: Federation, model: dict[str, Any], k: int) -> tuple[Any, Any]:
    """A client's test labels, and a model's softmax on their images."""
    data, rows = run.worker.held_out(k)
    run.strategy.flat.load(model)
    module = run.strategy.flat.module.eval()
    with torch.no_grad():
        found = torch.softmax(module(data.x(rows)).double(), dim=1).numpy()
    return data.y(rows).numpy(), found


def expected(pairs: list[tuple[Any, Any]], whose: str) -> dict[str, float]:
    """The figures by scikit-learn and NumPy, from labels and probabilities of each client."""
    pairs = [(y, p) for y, p in pairs if len(y)]
    each = np.sort([accuracy_score(y, p.argmax(1)) for y, p in pairs])
    y, p = (np.concatenate(part) for part in zip(*pairs, strict=True))
    classes = np.unique(y)
    recalls = recall_score(y, p.argmax(1), labels=classes, average=None, zero_division=0)
    return {
        f"{whose}/test_accuracy": accuracy_score(y, p.argmax(1)),
        f"{whose}/test_loss": log_loss(y, p, labels=range(10)),
        f"{whose}/test_accuracy_mean": np.mean(each),
        f"{whose}/test_accuracy_std": np.std(each),
        f"{whose}/test_accuracy_worst10": each[: max(1, -(-len(each) // 10))].mean(),
        f"{whose}/tested": len(pairs),
        f"{whose}/test_examples": len(y),
        **{f"{whose}/class_{c}_accuracy": r for c, r in zip(classes, recalls, strict=True)},
    }


def of(row: dict[str, Any], whose: str) -> dict[str, float]:
    names = ("test", "class")
    return {k: v for k, v in row.items() if k.startswith(tuple(f"{whose}/{n}" for n in names))}


def test_figures_are_those_of_scikit_learn(tmp_path: Path) -> None:
    run = Federation(tmp_path, CLIENTS, **KEYS)
    trained: dict[int, Any] = {}
    fold = run.strategy.fold
    run.strategy.fold = lambda update: (
        trained.update(
            {update.partition: {k: a.copy() for k, a in update.groups["model"].items()}}
        ),
        fold(update),
    )
    run.run()
    last = run.rows()[-1]
    ours = [probabilities(run, run.model, k) for k in range(CLIENTS)]
    theirs = [probabilities(run, trained[k], k) for k in range(CLIENTS)]
    assert of(last, "clients") == pytest.approx(expected(ours, "clients"), rel=1e-5)
    assert of(last, "personalised") == pytest.approx(expected(theirs, "personalised"), rel=1e-5)
    assert last["server/test_accuracy"] > 0


def test_what_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    keys = config.merged({**KEYS, "num-clients": CLIENTS})
    worker = Worker(config.load(keys), CLIENTS)
    whole = Worker(config.load({**keys, "client-test-fraction": 0.0}), CLIENTS)
    for k in range(CLIENTS):
        train, test = set(worker.rows(k).tolist()), set(worker.held_out(k)[1].tolist())
        assert not train & test
        assert train | test == set(whole.rows(k).tolist())
        assert len(test) == pytest.approx(0.25 * len(whole.rows(k)), abs=10)
        labels = worker.data.y(whole.rows(k)).numpy()
        held = np.bincount(worker.data.y(worker.held_out(k)[1]).numpy(), minlength=10)
        assert np.abs(held - np.bincount(labels, minlength=10) * 0.25).max() <= 1
        assert not len(whole.held_out(k)[1])
    rounds = Federation(tmp_path, CLIENTS, **KEYS)
    trained = []
    fetch = rounds.worker.fetch
    rounds.worker.fetch = lambda chosen, g: (trained.extend(chosen.tolist()), fetch(chosen, g))[1]
    rounds.run()
    assert set(trained) == {i for k in range(CLIENTS) for i in worker.rows(k).tolist()}


def test_a_server_without_a_test_set(tmp_path: Path) -> None:
    run = Federation(tmp_path, CLIENTS, **ALONE).run()
    rows = run.rows()
    assert all("server/test_accuracy" not in row for row in rows)
    found = [(row["round"], row["clients/test_accuracy"]) for row in rows]
    assert measures.accuracies(rows) == found
    assert len(found) == 2
    assert measures.best(rows) == max(accuracy for _, accuracy in found)
    assert json.loads((run.folder / "status.json").read_text())["status"] == "completed"
    with_test = Federation(tmp_path / "other", CLIENTS, **KEYS).run()
    assert all((with_test.model[k] == run.model[k]).all() for k in run.model)
    assert of(with_test.rows()[-1], "clients") == of(rows[-1], "clients")


def test_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    keys = {**ALONE, "num-server-rounds": 4, "checkpoint-every": 2, "fraction-evaluate": 0.5}
    whole = Federation(tmp_path / "whole", CLIENTS, **keys).run()
    broken = Federation(tmp_path / "broken", CLIENTS, **keys)

    def stop() -> None:
        raise KeyboardInterrupt

    broken.after(3, stop)
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    again = Federation(tmp_path / "broken", CLIENTS, **keys, resume=True).run()
    assert all((whole.model[k] == again.model[k]).all() for k in whole.model)
    for one, other in zip(whole.rows(), again.rows(), strict=True):
        for whose in ("clients", "personalised"):
            assert of(one, whose) == of(other, whose) != {}


def test_whom_it_asks(tmp_path: Path) -> None:
    class Counting(LocalProxy):
        def evaluate(self, ins: EvaluateIns, timeout: Any, group_id: Any) -> EvaluateRes:
            asked.append((int(ins.config["round"]), self.partition))
            return super().evaluate(ins, timeout, group_id)

    asked: list[tuple[int, int]] = []
    keys = {**KEYS, "num-server-rounds": 3, "evaluate-every": 2, "fraction-evaluate": 0.25}
    run = Federation(tmp_path, CLIENTS, Counting, **keys, **{"min-evaluate-clients": 3}).run()
    rounds = [number for number, _ in asked]
    assert sorted(rounds) == [2, 2, 2, 3, 3, 3]
    assert len(set(asked)) == 6
    first, *others = run.rows()
    assert not of(first, "clients")
    assert not of(first, "personalised")
    assert all(row["clients/tested"] <= 3 and of(row, "personalised") for row in others)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({TEST_LOSS: float("nan")}, "its test-loss is nan"),
        ({TEST_LOSS: -1.0}, "its test-loss is -1.0"),
        ({RIGHT: b"short"}, "its test-right is not 10 numbers"),
        ({SEEN: "a text"}, "its test-seen is not 10 numbers"),
        ({RIGHT: np.full(10, 2**39).tobytes()}, "more right answers than images"),
        ({RIGHT: np.full(10, -1).tobytes()}, "its test-right has counts from -1"),
        ({SEEN: np.full(10, 2**39).tobytes()}, "and counts 5497558138880"),
    ],
)
def test_an_impossible_evaluation_is_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    class Hostile(LocalProxy):
        def evaluate(self, ins: EvaluateIns, timeout: Any, group_id: Any) -> EvaluateRes:
            result = super().evaluate(ins, timeout, group_id)
            if self.partition == 1:
                result.metrics.update(change)
                result.loss = change.get(TEST_LOSS, result.loss)
            return result

    keys = {**ALONE, "num-server-rounds": 1}
    run = Federation(tmp_path / "hostile", CLIENTS, Hostile, **keys).run()
    (row,) = run.rows()
    assert row["clients/evaluation_rejected"] == row["clients/evaluation_failed"] == 1
    (said,) = run.strategy.record.reasons
    assert said.startswith("client 1: ")
    assert reason in said
    pairs = [probabilities(run, run.model, k) for k in (0, 2, 3)]
    assert of(row, "clients") == pytest.approx(expected(pairs, "clients"), rel=1e-5)
    assert row["clients/failed"] == 0


def test_an_impossible_test_of_ones_own_model_is_refused(tmp_path: Path) -> None:
    class Hostile(LocalProxy):
        def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
            result = super().fit(ins, timeout, group_id)
            if self.partition == 2:
                del result.metrics[SEEN]
            return result

    run = Federation(tmp_path, CLIENTS, Hostile, **{**ALONE, "num-server-rounds": 1}).run()
    (row,) = run.rows()
    assert row["clients/rejected"] == 1
    assert run.strategy.record.reasons == ["client 2: its test-seen is not 10 numbers"]


def test_a_client_that_is_not_there_only_misses_the_evaluation(tmp_path: Path) -> None:
    class Silent(LocalProxy):
        def evaluate(self, ins: EvaluateIns, timeout: Any, group_id: Any) -> EvaluateRes:
            if self.partition == 0:
                raise ValueError("Node Unavailable")
            return super().evaluate(ins, timeout, group_id)

    run = Federation(tmp_path, CLIENTS, Silent, **{**ALONE, "num-server-rounds": 1}).run()
    (row,) = run.rows()
    assert row["clients/evaluation_failed"] == 1
    assert "clients/evaluation_rejected" not in row


def test_under_flowers_own_server(tmp_path: Path) -> None:
    ours = Federation(tmp_path / "ours", CLIENTS, **ALONE).run()
    theirs = Federation(tmp_path / "theirs", CLIENTS, **ALONE)
    server = Server(client_manager=theirs.manager, strategy=theirs.strategy)
    history, _ = server.fit(2, None)
    for name, value in of(ours.rows()[-1], "clients").items():
        assert history.metrics_distributed[name][-1] == (2, value)
    assert history.losses_distributed == [(r["round"], r["clients/test_loss"]) for r in ours.rows()]


def test_at_the_defaults_nobody_is_asked(tmp_path: Path) -> None:
    class Deaf(LocalProxy):
        def evaluate(self, ins: EvaluateIns, timeout: Any, group_id: Any) -> EvaluateRes:
            raise AssertionError("nobody asks")

    run = Federation(tmp_path, CLIENTS, Deaf, **{**KEYS, "client-test-fraction": 0.0}).run()
    for row in run.rows():
        assert not of(row, "clients")
        assert "clients/evaluation_failed" not in row
    assert all("measure" not in call for proxy in run.proxies for call in proxy.calls)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"client-test-fraction": 0.0}, "nobody would have test images"),
        ({"fraction-evaluate": 0.0}, "nobody would measure the model"),
        ({"min-evaluate-clients": 5}, "min-evaluate-clients = 5: the run has 4 clients"),
        ({"limit-train": 4}, "no client has images enough"),
        ({"strategy": "mrtf"}, "mrtf distils on images that the server has"),
        ({"strategy": "feddf"}, "feddf distils on images that the server has"),
    ],
)
def test_what_cannot_be_is_one_line_before_training(
    tmp_path: Path, keys: dict[str, Any], line: str
) -> None:
    with pytest.raises(UserError, match=line) as error:
        Federation(tmp_path, CLIENTS, **{**ALONE, **keys})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_mrtf_may_distil_on_a_pool(tmp_path: Path) -> None:
    quick = {"synthesis-every": 1, "synthesis-per-client": 4, "synthesis-steps": 2}
    keys = {**ALONE, **quick, "strategy": "hfmds-mrtf", "transductive-set": "pool"}
    run = Federation(tmp_path, CLIENTS, **keys, **{"mrtf-steps": 2}).run()
    assert measures.best(run.rows()) is not None
    assert run.strategy.refiner.refined is not None


def test_figures_by_hand() -> None:
    def client(*pairs: tuple[int, int]) -> Scores:
        right, seen = (np.array(column) for column in zip(*pairs, strict=True))
        return Scores(1.0, right, seen)

    clients = [client((k, 10), (0, 1)) for k in range(11)] + [client((0, 0), (0, 0))]
    found = figures(clients, "clients")
    assert found["clients/tested"] == 11
    assert found["clients/test_examples"] == 121
    assert found["clients/test_accuracy_worst10"] == pytest.approx(0.5 / 11)  # of the lowest two
    assert found["clients/test_accuracy_mean"] == pytest.approx(5 / 11)
    assert found["clients/test_accuracy_std"] == pytest.approx(10**0.5 / 11)
    assert found["clients/class_0_accuracy"] == 55 / 110
    assert found["clients/class_1_accuracy"] == 0
    assert figures(clients[-1:], "clients") == {}
