"""Images x steps per second of the synthesis, against a bare loop of the same passes.

    python benchmarks/inversion.py [--images 64] [--steps 10] [--repeats 5] [--device cpu]

HFMDS's inversion (CE and feature matching, l1, mu = 0.5) of random 3x32x32 images of 10 classes,
models with group normalisation. The bare loop below is written without the app's code: one forward
and one backward pass of the same network per step, the same two terms spelled out, torch's Adam.
The two take turns; each takes the median of its repeats. Both include the targets' forward pass.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.compute.process import keep_freed_memory
from fedsyn_flwr.models import SplitModel, build_model
from fedsyn_flwr.synthesis.inversion import InversionSettings, invert

MODELS = ("cnn", "cnn-gap", "resnet18")


def bare(model: SplitModel, x: Tensor, y: Tensor, mean: Tensor, steps: int) -> None:
    """The paper's objective as a script would write it."""
    weight = model.classifier.weight[y].clamp(min=0)
    with torch.no_grad():
        z = model.neck(model.trunk(x))
        p = (weight * (1.5 * z - 0.5 * mean)).clamp(min=0)
        p = p / p.sum(1, keepdim=True).clamp(min=1e-8)
    fake = torch.randn(x.shape, device=x.device).contiguous(memory_format=torch.channels_last)
    fake.requires_grad_()
    adam = torch.optim.Adam([fake], lr=0.1)
    for _ in range(steps):
        z = model.neck(model.trunk(fake))
        q = (weight * z).clamp(min=0)
        q = q / q.sum(1, keepdim=True).clamp(min=1e-8)
        matching = (p * ((p + 1e-8).log() - (q + 1e-8).log())).sum()
        loss = F.cross_entropy(model.classifier(z), y, reduction="sum") + matching
        adam.zero_grad()
        loss.backward()
        adam.step()


def ours(model: SplitModel, x: Tensor, y: Tensor, mean: Tensor, steps: int) -> None:
    """What a client runs."""
    settings = InversionSettings(steps, 0.1, 1.0, 0.5, 0.0, 0.0, "l1", "vector")
    invert(model, x, y, mean, settings, torch.Generator().manual_seed(0))


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Of one call, the device's queue included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(name: str, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """Median seconds of the app and of the bare loop, and the median of the pairs' ratios."""
    device = torch.device(arguments.device)
    model = build_model(name, in_shape=(3, 32, 32), num_classes=10, seed=0).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.eval()
    x = torch.randn(arguments.images, 3, 32, 32, device=device)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.arange(arguments.images, device=device) % 10
    mean = model.forward_features(x).detach().roll(1, 0)
    app, loop = [], []
    for _ in range(arguments.repeats + 1):  # the first pair is warm-up
        app.append(seconds(lambda: ours(model, x, y, mean, arguments.steps), device))
        model.requires_grad_(False)
        loop.append(seconds(lambda: bare(model, x, y, mean, arguments.steps), device))
    ratios = [a / b for a, b in zip(app[1:], loop[1:], strict=True)]
    return statistics.median(app[1:]), statistics.median(loop[1:]), statistics.median(ratios)


def main() -> None:
    """A line per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0 = torch's own choice")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as in every client; without it page faults decide, for both
    work = arguments.images * arguments.steps
    print(f"{'model':10} images*steps/s   bare loop   time ratio")
    for name in arguments.models:
        app, loop, ratio = compare(name, arguments)
        print(f"{name:10} {work / app:14.0f} {work / loop:11.0f} {ratio:12.3f}")


if __name__ == "__main__":
    main()
