"""The central model: when it is FedAvg's, and what a round of it trains on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import Federation

from fedsyn_flwr import config
from fedsyn_flwr.client.training import train_local
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.report import centralized
from fedsyn_flwr.report.centralized import train_centrally

QUICK: dict[str, Any] = {
    "strategy": "fedavg",
    "num-server-rounds": 2,
    "limit-train": 200,
    "limit-test": 50,
    "model-width": 0.25,
    "local-epochs": 2,
}


def settings(**keys: Any) -> config.Config:
    return config.load(config.merged({**QUICK, **keys}))


@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_with_one_client_it_is_fedavg(tmp_path: Path, norm: str) -> None:
    f = Federation(tmp_path, 1, **{**QUICK, "norm": norm, "augment": "crop-flip"}).run()
    again = train_centrally(settings(**{"num-clients": 1, "norm": norm, "augment": "crop-flip"}))
    assert again.digest() == digest(f.model)


def test_many_clients_are_one_with_larger_batches(tmp_path: Path) -> None:
    f = Federation(tmp_path, 1, **{**QUICK, "batch-size": 96}).run()
    for partition in ("iid", "dirichlet"):
        made = train_centrally(settings(**{"num-clients": 3, "partition": partition}))
        assert made.digest() == digest(f.model)


def test_a_round_sees_the_samples_of_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"fraction-fit": 0.5, "num-server-rounds": 3, "batch-size": 10}
    f = Federation(tmp_path, 4, **{**QUICK, **keys}).run()
    calls = [(call["round"], proxy.partition) for proxy in f.proxies for call in proxy.calls]
    asked = [sorted(k for number, k in calls if number == wanted) for wanted in (1, 2, 3)]
    seen = []

    def spying(flat: Any, samples: Any, hooks: Any, train: Any, **more: Any) -> Any:
        seen.append((samples.tolist(), train, more["key"]))
        return train_local(flat, samples, hooks, train, **more)

    monkeypatch.setattr(centralized, "train_local", spying)
    train_centrally(settings(**{"num-clients": 4, **keys}))
    assert [key for *_, key in seen] == [(1, 0), (2, 0), (3, 0)]
    for (samples, train, _), clients in zip(seen, asked, strict=True):
        held = [int(i) for k in clients for i in f.worker.rows(k)]
        assert samples == sorted(held)
        assert train == replace(f.strategy.config.train, batch_size=20)
    assert len({tuple(samples) for samples, *_ in seen}) > 1


@pytest.mark.parametrize("keys", [{"partition": "own", "num-clients": 2}, {"num-clients": 0}])
def test_without_the_clients_data_there_is_none(keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="no central model without the clients' data"):
        train_centrally(settings(**keys))
