"""Seconds per round through `flwr run` against bare PyTorch loops doing the same steps.

    python benchmarks/round_time.py path/to/cifar10 [--work W1 W2] [--rounds 6]

W1: 20 clients × 20 steps of batch 50 on CIFAR-10 (a folder in Hugging Face layout), the `cnn` model
without normalisation (545,098 parameters). W2: 20 clients × one step of batch 8, ResNet-18 with
BatchNorm (11.2 million parameters). SGD lr 0.1, no augmentation, no evaluation. Each arm is a
process of its own, measured twice; the loops hold the images as float tensors and average as they
go:

- bare: one process, two threads; PyTorch as it comes
- split: two processes of one thread, ten clients each
- tuned: the same with channels_last and a malloc that keeps freed memory
- app: `flwr run` with two actors of one thread
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr import build
from fedsyn_flwr.compute.process import keep_freed_memory
from fedsyn_flwr.simulation import resolve, runner

CLIENTS = 20
COMMON = {
    "dataset": "cifar10",
    "partition": "iid",
    "strategy": "fedavg",
    "model-width": 1.0,
    "local-epochs": 1,
    "learning-rate": 0.1,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "clip-norm": 0.0,
    "augment": "none",
    "evaluate-every": 10_000,
    "checkpoint-every": 0,
}
WORK = {
    "W1": {"limit-train": 20_000, "batch-size": 50, "model": "cnn", "norm": "none"},
    "W2": {"limit-train": 160, "batch-size": 8, "model": "resnet18", "norm": "bn"},
}
PARAMETERS = {"W1": 545_098, "W2": 11_173_962}


def network(work: str) -> nn.Module:
    """The model as a script would write it."""
    if work == "W2":
        model = torchvision.models.resnet18(num_classes=10)
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)  # CIFAR's stem
        model.maxpool = nn.Identity()
    else:
        model = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10)),
        )
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[work]
    return model


def client(model: nn.Module, x: Tensor, y: Tensor, part: Tensor, batch: int) -> None:
    """One client's epoch, in place."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for chosen in part[torch.randperm(len(part))].split(batch):
        optimiser.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimiser.step()


Tensors = dict[str, Tensor]


def loop(
    work: str,
    data: str,
    share: slice,
    tuned: bool,
    state: Tensors,
    total: Tensors,
    line: Connection,
) -> None:
    """Train every ``share.step``-th client whenever told to, from ``state`` into ``total``."""
    torch.set_num_threads(2 // share.step)
    keys = {**COMMON, **WORK[work], "data-dir": data}
    settings = resolve.prepare("digits-fedavg", flags=keys, clients=CLIENTS).config
    train = build.images(settings, "train")
    x = torch.from_numpy(train.images.copy()).float().div_(255).sub_(0.5).div_(0.25)
    parts = [torch.from_numpy(p) for p in build.partitions(settings, train, CLIENTS)]
    model, y = network(work), torch.from_numpy(train.labels)
    if tuned:
        keep_freed_memory()
        x, model = (thing.to(memory_format=torch.channels_last) for thing in (x, model))
    line.send("ready")
    while line.recv():
        for value in total.values():
            value.zero_()
        for part in parts[share]:
            model.load_state_dict(state)
            client(model, x, y, part, settings.train.batch_size)
            for name, value in model.state_dict().items():
                total[name] += value / CLIENTS if value.is_floating_point() else 0
        line.send("done")


def loop_rounds(work: str, data: str, rounds: int, processes: int, tuned: bool) -> list[float]:
    """Seconds of each round of a plain loop in one or two processes."""
    start = multiprocessing.get_context("spawn")
    state = {k: v.share_memory_() for k, v in network(work).state_dict().items()}
    workers, lines, totals = [], [], []
    for i in range(processes):
        ours, theirs = start.Pipe()
        totals.append({k: torch.zeros_like(v).share_memory_() for k, v in state.items()})
        share = slice(i, None, processes)
        args = (work, data, share, tuned, state, totals[-1], theirs)
        workers.append(start.Process(target=loop, args=args))
        workers[-1].start()
        lines.append(ours)
    for line in lines:
        line.recv()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        for line in lines:
            line.send(True)
        for line in lines:
            line.recv()
        for name, value in state.items():
            if value.is_floating_point():
                value.copy_(sum(total[name] for total in totals))
        seconds.append(time.perf_counter() - began)
    for line, worker in zip(lines, workers, strict=True):
        line.send(False)
        worker.join()
    return seconds


def app_rounds(work: str, data: str, rounds: int) -> list[float]:
    """Seconds of each round of the app: real SuperLink, Ray, two actors of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            **COMMON,
            **WORK[work],
            "data-dir": data,
            "results-dir": folder,
            "num-server-rounds": rounds + 1,  # the last round is evaluated, always
            "run-name": "benchmark",
        }
        prepared = resolve.prepare("digits-fedavg", flags=flags, clients=CLIENTS)
        result = runner.execute(prepared.run_config, prepared.options)
        if not result.completed:
            raise SystemExit(result.reason)
        return [row["seconds/round"] for row in result.rows][:-1]


def compare(work: str, data: str, rounds: int) -> None:
    """Print a work's arms, each measured twice, the second time in the opposite order.

    So a machine that gets slower or faster favours none. The first round of each is warm-up.
    """
    arms: dict[str, Callable[[], list[float]]] = {
        "bare": lambda: loop_rounds(work, data, rounds, 1, tuned=False),
        "split": lambda: loop_rounds(work, data, rounds, 2, tuned=False),
        "tuned": lambda: loop_rounds(work, data, rounds, 2, tuned=True),
        "app": lambda: app_rounds(work, data, rounds),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for name in [*arms, *reversed(arms)]:
        seconds[name] += arms[name]()[1:]
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    for name, found in seconds.items():
        spread = f"min {min(found):.2f}  max {max(found):.2f}"
        ratio = medians[name] / medians["bare"]
        print(f"{work} {name:6} median {medians[name]:.2f} s  {spread}  ratio {ratio:.2f}")
    print(f"{work} app / tuned {medians['app'] / medians['tuned']:.2f}", flush=True)


def main() -> None:
    """Print every arm of every work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    for work in arguments.work:
        compare(work, str(Path(arguments.data).resolve()), arguments.rounds)


if __name__ == "__main__":
    main()
