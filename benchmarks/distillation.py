"""Seconds of MrTF's distillation and memory of its logits, against a bare loop.

    python benchmarks/distillation.py [--model vgg8] [--steps 50] [--repeats 5] [--teachers 100]

The bare loop is written without the app's code: torch's Adam over the parameters, the same batches
of 64 already normalised images. The two take turns; each takes the median of its repeats. Then as
many teachers' logits on 10,000 images as a round has are put together, and the process's peak
memory is printed.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr.compute.cost_meter import peak_memory
from fedsyn_flwr.models import build_model
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.server import distillation as d

SHAPE, CLASSES, BATCH, SAMPLES = (3, 32, 32), 10, 64, 10_000


def bare(model: nn.Module, x: Tensor, target: Tensor, steps: int) -> None:
    """Distillation as a script would write it."""
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(0, len(x), (BATCH,))
        adam.zero_grad()
        F.cross_entropy(model(x[chosen]), target[chosen]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 100)
        adam.step()
        schedule.step()


def seconds(work: Callable[[], None]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print both medians, their ratio and the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vgg8")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--teachers", type=int, default=100)
    args = parser.parse_args()
    models = [
        build_model(args.model, in_shape=SHAPE, num_classes=CLASSES, norm="bn", seed=0)
        for _ in range(2)
    ]
    plain, flat = models[0], FlatModel(models[1])
    x = torch.randn(1_000, *SHAPE).contiguous(memory_format=torch.channels_last)
    target = torch.rand(len(x), CLASSES).softmax(dim=1)
    settings = d.DistilSettings(args.steps, 1e-3, 1e-6, BATCH, 100.0, moving_statistics=True)

    def ours() -> None:
        d.distil(flat, lambda i: x[i], target, settings, seed=0, key=(1,))

    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(args.repeats):
        times["bare"].append(seconds(lambda: bare(plain, x, target, args.steps)))
        times["ours"].append(seconds(ours))
    medians = {name: statistics.median(values) for name, values in times.items()}
    print({name: round(value, 3) for name, value in medians.items()})
    print(f"ratio {medians['ours'] / medians['bare']:.3f}")
    logits = torch.randn(args.teachers, SAMPLES, CLASSES)
    q = d.stabilised(logits, 4)
    d.rectified(q, q[0], q[1], 0.5)
    print(f"peak {peak_memory()['peak_mb']:.0f} MB with {args.teachers} teachers' logits")


if __name__ == "__main__":
    main()
