"""MrTF's toy, and its federations of many clients, at small size."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from harness import Federation

from fedsyn_flwr.config import APP_DIR


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_toy_rectified_is_above_both_averages(seed: int) -> None:
    """Three clients of two digits each: who has not seen a class must not speak as loudly."""
    spec = importlib.util.spec_from_file_location("toy", APP_DIR / "benchmarks" / "mrtf_toy.py")
    assert spec is not None
    assert spec.loader is not None
    toy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(toy)
    keys = {"dataset": "digits", "local-epochs": 5, "model": "mlp", "norm": "none"}
    accuracy = toy.toy("", seed, **keys, **{"model-width": 0.1})
    averages = max(accuracy["AvgLogi"], accuracy["AvgProb"])
    assert accuracy["rectified probabilities"] > averages + 0.05


@pytest.mark.parametrize(("clients", "share"), [(100, 0.1), (1000, 0.01)])
@pytest.mark.parametrize(
    "split",
    [{"partition": "dirichlet", "dirichlet-alpha": 0.1}, {"partition": "classes"}],
    ids=lambda s: s["partition"],
)
def test_many_clients(tmp_path: Path, clients: int, share: float, split: dict[str, Any]) -> None:
    keys = {"strategy": "mrtf", "num-server-rounds": 2, "mrtf-steps": 2, "model-width": 0.1}
    f = Federation(tmp_path, clients, **keys, **split, **{"fraction-fit": share}).run()
    assert json.loads((f.folder / "status.json").read_text())["status"] == "completed"
    rows = [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]
    asked = [
        sum(c["round"] == r and c["phase"] == "train" for p in f.proxies for c in p.calls)
        for r in (1, 2)
    ]
    assert asked == [10, 10]
    assert all(row["refinement/chosen_clients"] <= 10 for row in rows)
