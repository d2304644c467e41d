"""Steps per second on a GPU: eager against CUDA graphs, with torch and numpy alone.

    python benchmarks/gpu_steps.py [--amp] [--device cuda] [--models cnn vgg8 resnet18]

From a checkout; nothing needs to be installed but torch and numpy. Random 3x32x32 images of 10
classes, batches of 64, the app's own training loop, augmentation and inversion:

- plain: a step of FedAvg; mixed: as many images of a pool in a second pass, HFMDS's eq. (6)
- eager against graph: `cuda-graphs` false or true; what is recorded is in place before the clock
  starts
- the inversion of as many clients' images as a synthesis of CIFAR-10 has
- what a round of CIFAR-10 takes by these numbers: K clients' epochs one after the other, and the
  synthesis; no server, no messages

On a CPU "graph" only goes through the buffers and gains nothing; small flags show that it runs.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.client.training import Batch, Loss, PlainHooks, train_local
from fedsyn_flwr.compute.cuda_graphs import WARM_UP, Graphs, Passes, plainly
from fedsyn_flwr.compute.process import keep_freed_memory
from fedsyn_flwr.data import ImageSet, ResidentData, augment
from fedsyn_flwr.models import build_model
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.synthesis.inversion import InversionSettings, invert

CLASSES, ALPHA, MEAN = 10, 0.5, [0.5] * 3


class Bench:
    """One model with its data, a pool, and a way to do its passes."""

    def __init__(self, name: str, arguments: argparse.Namespace, passes: Passes) -> None:
        self.arguments, self.passes = arguments, passes
        self.device = torch.device(arguments.device)
        shape = (3, arguments.size, arguments.size)
        module = build_model(
            name, in_shape=shape, num_classes=CLASSES, width=arguments.width, seed=0
        )
        self.flat = FlatModel(module.to(self.device))
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (arguments.samples, *shape), dtype=np.uint8)
        labels = np.arange(arguments.samples) % CLASSES
        split = ImageSet(images, labels, {}, [str(c) for c in range(CLASSES)])
        self.data = ResidentData(split, MEAN, MEAN, self.device)

    def plain(self, batch: Batch) -> Loss:
        """FedAvg's loss."""
        value = F.cross_entropy(self.flat.module(batch.x).float(), batch.y)
        return Loss(value, value)

    def mixed(self, batch: Batch) -> Loss:
        """HFMDS's: real and synthetic samples."""
        real = self.plain(batch).objective
        assert batch.shared_x is not None
        assert batch.shared_y is not None
        shared = F.cross_entropy(self.flat.module(batch.shared_x).float(), batch.shared_y)
        return Loss(ALPHA * real + (1 - ALPHA) * shared, real)

    def train(self, step: str, steps: int) -> None:
        """So many steps of a kind, on batches of one size."""
        a, source = self.arguments, torch.Generator().manual_seed(0)

        def fetch(chosen: Tensor) -> Batch:
            x, y = augment(self.data.x(chosen), source), self.data.y(chosen)
            if step == "plain":
                return Batch(x, y)
            other = torch.randint(0, len(self.data), (len(chosen),), generator=source)
            return Batch(x, y, self.data.x(other), self.data.y(other))

        settings: Any = SimpleNamespace(
            local_epochs=1, batch_size=a.batch, learning_rate=0.01, momentum=0.9,
            weight_decay=1e-5, clip_norm=100.0, amp=a.amp,
        )  # fmt: skip
        rows = torch.arange(steps * a.batch) % len(self.data)
        loss = self.plain if step == "plain" else self.mixed
        train_local(
            self.flat,
            rows,
            PlainHooks(fetch, loss),
            settings,
            seed=0,
            key=(step,),
            passes=self.kind(step),
        )

    def kind(self, step: str) -> Passes:
        """The passes of one kind: two losses of one form must not replay each other."""
        return lambda key, work, *inputs: self.passes((step, key), work, *inputs)

    def synthesise(self, clients: int) -> None:
        """The inversion of each client's images, one client after the other."""
        a = self.arguments
        settings = InversionSettings(
            a.inversion_steps, 0.1, 1.0, 0.5, 0.0, 0.0, "l1", "vector", amp=a.amp
        )
        for client in range(clients):
            rows = torch.arange(client * a.images, (client + 1) * a.images) % len(self.data)
            x, y = self.data.x(rows), self.data.y(rows)
            prototypes = torch.zeros(len(y), self.flat.module.feature_dim, device=self.device)
            noise = torch.Generator().manual_seed(client)
            invert(self.flat.module, x, y, prototypes, settings, noise, passes=self.kind("invert"))


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Of one call, the device's queue included."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def measured(name: str, how: str, arguments: argparse.Namespace) -> None:
    """Print a model's lines for eager or graph."""
    a, rates = arguments, {}
    bench = Bench(name, a, plainly if how == "eager" else Graphs().of(name))
    for step in ("plain", "mixed"):
        bench.train(step, WARM_UP + 2)  # and what is recorded
        times = [
            seconds(lambda s=step: bench.train(s, a.steps), bench.device) for _ in range(a.repeats)
        ]
        rates[step] = a.steps / statistics.median(times)
        print(f"{name:9} {step:6} {how:6} {rates[step]:10.1f}", flush=True)
    bench.synthesise(1)
    took = seconds(lambda: bench.synthesise(a.clients), bench.device)
    print(
        f"inversion of {a.clients} x {a.images} images x {a.inversion_steps} steps, "
        f"{name}, {how}: {took:.2f} s"
    )
    steps = a.epochs * -(-50_000 // (a.clients * a.batch)) * a.clients
    print(
        f"estimate of a round, {name}, {how}, K = {a.clients}, {a.epochs} epochs, {steps} steps: "
        f"FedAvg {steps / rates['plain']:.1f} s, HFMDS {steps / rates['mixed']:.1f} s, "
        f"with a synthesis {steps / rates['mixed'] + took:.1f} s",
        flush=True,
    )


def where(device: torch.device) -> str:
    """What it runs on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__}"


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--amp", action="store_true", help="forward passes in bfloat16")
    parser.add_argument("--models", nargs="+", default=["cnn", "vgg8", "resnet18"])
    for flag, default, text in (
        ("--batch", 64, "B"),
        ("--size", 32, "height and width of an image"),
        ("--samples", 10_000, "resident images"),
        ("--steps", 200, "steps per measurement"),
        ("--repeats", 3, "measurements, of which the median counts"),
        ("--clients", 20, "K"),
        ("--images", 256, "synthetic images per client"),
        ("--inversion-steps", 200, "steps of the inversion"),
        ("--epochs", 5, "local epochs of the estimated round"),
    ):
        parser.add_argument(flag, type=int, default=default, help=text)
    parser.add_argument(
        "--width", type=float, default=1.0, help="multiplies every layer's channels"
    )
    return parser.parse_args()


def main() -> None:
    """Two lines of steps, an inversion and an estimate for each model and way."""
    arguments = parse()
    keep_freed_memory()
    device = torch.device(arguments.device)
    print(f"{where(device)}, {'bfloat16' if arguments.amp else 'float32'}, batch {arguments.batch}")
    print(f"{'model':9} {'step':6} {'passes':6} {'steps/s':>10}")
    for name in arguments.models:
        for how in ("eager", "graph"):
            measured(name, how, arguments)
    if device.type == "cuda":
        print(f"peak {torch.cuda.max_memory_allocated(device) / 1e9:.2f} GB allocated by PyTorch")


if __name__ == "__main__":
    main()
