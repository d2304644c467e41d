"""Whether the app's speed has cost accuracy: W1 of `round_time.py` against a bare PyTorch loop.

    python benchmarks/round_accuracy.py path/to/cifar10 [--rounds 5] [--seeds 0 1 2]

Same initial weights, same clients, same number of steps; batches in another order. The loop is
plain PyTorch: contiguous memory, `torch.optim.SGD`, `load_state_dict` and an average of state
dicts. Accuracy on the test images after the last round, in %.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from round_time import CLIENTS, COMMON, WORK, client
from torch import Tensor, nn

from fedsyn_flwr import build
from fedsyn_flwr.data import get_spec, normalise
from fedsyn_flwr.simulation import resolve, runner


def prepared(data: str, seed: int, **keys: Any) -> resolve.Plan:
    """The run's configuration."""
    flags = {**COMMON, **WORK["W1"], "data-dir": data, "seed": seed, **keys}
    return resolve.prepare("digits-fedavg", flags=flags, clients=CLIENTS)


def by_loop(data: str, seed: int, rounds: int) -> float:
    """Accuracy of the bare loop's last model."""
    config = prepared(data, seed).config
    spec = get_spec("cifar10")
    train, test = (build.images(config, split) for split in ("train", "test"))
    raw = (torch.from_numpy(images.images.copy()) for images in (train, test))
    x, x_test = (normalise(pixels, spec.mean, spec.std) for pixels in raw)
    y, y_test = torch.from_numpy(train.labels), torch.from_numpy(test.labels)
    parts = [torch.from_numpy(part) for part in build.partitions(config, train, CLIENTS)]
    shape = (int(x.shape[1]), int(x.shape[2]), int(x.shape[3]))
    model: nn.Module = build.network(config, shape)
    torch.manual_seed(seed)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(rounds):
        trained = []
        for part in parts:
            model.load_state_dict(state)
            client(model, x, y, part, config.train.batch_size)
            trained.append({name: value.clone() for name, value in model.state_dict().items()})
        state = {name: torch.stack([t[name] for t in trained]).mean(dim=0) for name in state}
    model.load_state_dict(state)
    return accuracy(model, x_test, y_test)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of images whose largest logit is the label's."""
    return float((model.eval()(x).argmax(dim=1) == y).double().mean())


def by_app(data: str, seed: int, rounds: int) -> float:
    """Accuracy of the app's last model."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {"results-dir": folder, "num-server-rounds": rounds, "run-name": "benchmark"}
        p = prepared(data, seed, **keys)
        result = runner.execute(p.run_config, p.options)
        if not result.completed:
            raise SystemExit(result.reason)
        return float(result.rows[-1]["server/test_accuracy"])


def main() -> None:
    """Print both accuracies for each seed, their means and standard deviations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    data = str(Path(arguments.data).resolve())
    for name, arm in (("loop", by_loop), ("app", by_app)):
        found = [100 * arm(data, seed, arguments.rounds) for seed in arguments.seeds]
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        values = "  ".join(f"{value:.1f}" for value in found)
        print(f"{name:5} {values}   mean {statistics.mean(found):.1f} ± {spread:.1f}", flush=True)


if __name__ == "__main__":
    main()
