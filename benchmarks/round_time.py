"""Seconds per round through `flwr run` against a bare PyTorch loop doing the same steps.

    python benchmarks/round_time.py path/to/cifar10 [--rounds 6]

20 clients × 20 steps of batch 50 on CIFAR-10 (a folder in Hugging Face layout), the `cnn` model
without normalisation (545,098 parameters), SGD lr 0.1, no augmentation, no evaluation. The bare
loop is one process with two threads, images in memory as float tensors, contiguous format.
"""

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr import assembly, plan, runner

KEYS = {
    "dataset": "cifar10",
    "limit-train": 20_000,
    "partition": "iid",
    "strategy": "fedavg",
    "model": "cnn",
    "norm": "none",
    "model-width": 1.0,
    "local-epochs": 1,
    "batch-size": 50,
    "learning-rate": 0.1,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "clip-norm": 0.0,
    "augment": "none",
    "evaluate-every": 10_000,
}


def bare_rounds(data: str, rounds: int) -> list[float]:
    """Seconds of each round of the plain loop."""
    torch.set_num_threads(2)
    settings = plan.prepare("digits-fedavg", flags={**KEYS, "data-dir": data}, clients=20).config
    train = assembly.images(settings, "train")
    x = torch.from_numpy(train.images.copy()).float().div_(255).sub_(0.5).div_(0.25)
    y = torch.from_numpy(train.labels)
    parts = [torch.from_numpy(p) for p in assembly.partitions(settings, train, 20)]
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    assert sum(p.numel() for p in model.parameters()) == 545_098
    return [one_round(model, x, y, parts) for _ in range(rounds)]


def one_round(model: nn.Module, x: Tensor, y: Tensor, parts: list[Tensor]) -> float:
    """One FedAvg round in place; its seconds."""
    start = time.perf_counter()
    initial = copy.deepcopy(model.state_dict())
    total = {name: torch.zeros_like(value) for name, value in initial.items()}
    for part in parts:
        model.load_state_dict(initial)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for chosen in part[torch.randperm(len(part))].split(50):
            optimiser.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimiser.step()
        for name, value in model.state_dict().items():
            total[name] += value / len(parts)
    model.load_state_dict(total)
    return time.perf_counter() - start


def app_rounds(data: str, rounds: int) -> list[float]:
    """Seconds of each round of the app: real SuperLink, Ray, two actors of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            **KEYS,
            "data-dir": data,
            "results-dir": folder,
            "num-server-rounds": rounds + 1,  # the last round is evaluated, always
            "run-name": "benchmark",
        }
        prepared = plan.prepare("digits-fedavg", flags=flags, clients=20)
        result = runner.execute(prepared.run_config, prepared.options)
        if not result.completed:
            raise SystemExit(result.reason)
        return [row["seconds/round"] for row in result.rows][:-1]


def main() -> None:
    """Print both arms and their ratio; the first round of each is warm-up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    data = str(Path(arguments.data).resolve())
    bare, app = (f(data, arguments.rounds)[1:] for f in (bare_rounds, app_rounds))
    for name, seconds in (("bare loop", bare), ("flwr run", app)):
        middle = statistics.median(seconds)
        print(f"{name:10} median {middle:.2f} s  min {min(seconds):.2f}  max {max(seconds):.2f}")
    print(f"ratio {statistics.median(app) / statistics.median(bare):.2f}")


if __name__ == "__main__":
    main()
