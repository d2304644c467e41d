"""MrTF's toy (arXiv 2305.04201): three clients of two classes each, and what their ensemble knows.

    python benchmarks/mrtf_toy.py path/to/mnist --seeds 0,1,2

Each client trains from the same weights on its own two of the first six classes; the six classes'
test images are then answered by the three models together. The paper prints 33.1 for AvgLogi, 44.0
for AvgProb, and 39.4 and 79.9 for the two of them rectified.
"""

import argparse
import statistics

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr import build, config
from fedsyn_flwr.build import resident
from fedsyn_flwr.client.training import Loss, PlainHooks, train_local
from fedsyn_flwr.client.worker import Worker
from fedsyn_flwr.server import distillation as d

PAIRS = ((0, 1), (2, 3), (4, 5))
TAU = 4.0


def client_logits(worker: Worker, test: Tensor) -> Tensor:
    """Logits (3, M, C) of the clients' models on the test images."""
    start, rows = worker.flat.copy_vectors(), []
    for k, pair in enumerate(PAIRS):
        worker.flat.load(start)
        mine = torch.isin(worker.data.labels, torch.tensor(pair)).nonzero()[:, 0]
        train_local(
            worker.flat,
            mine,
            PlainHooks(
                lambda chosen: worker.fetch(chosen, torch.Generator()),
                lambda batch: Loss(*[F.cross_entropy(worker.flat.module(batch.x), batch.y)] * 2),
            ),
            worker.settings.train,
            seed=worker.settings.federation.seed,
            key=(1, k),
        )
        with torch.no_grad():
            pieces = test.split(500)
            rows.append(torch.cat([worker.flat.module.eval()(piece) for piece in pieces]))
    return torch.stack(rows)


def targets(logits: Tensor) -> dict[str, Tensor]:
    """Every way to put (3, M, C) logits together, shape (M, C) each."""
    q = d.stabilised(logits, TAU)
    weights = d.confidence(q)[:, :, None]
    scaled = logits / logits.std(dim=(1, 2), keepdim=True)
    return {
        "AvgLogi": d.average_logits(logits),
        "AvgProb": d.average_probabilities(logits),
        "ST (logits)": d.average_logits(scaled),
        "ST (probabilities)": q.mean(dim=0),
        "rectified logits": (weights * scaled).sum(dim=0),
        "rectified probabilities": (weights * q).sum(dim=0),
    }


def toy(data_dir: str, seed: int, **keys: config.Scalar) -> dict[str, float]:
    """Accuracy in [0, 1] of each target, on the test images of the six classes."""
    base = {"strategy": "fedavg", "partition": "iid", "device": "cpu", "seed": seed}
    settings = config.load(config.merged({**base, "data-dir": data_dir, **keys}))
    worker = Worker(settings, len(PAIRS))
    test = resident(settings, build.images(settings, "test"), worker.device)
    known = (test.labels < 6).nonzero()[:, 0]
    logits = client_logits(worker, test.x(known))
    right = {name: t.argmax(dim=1) == test.y(known) for name, t in targets(logits).items()}
    return {name: float(r.float().mean()) for name, r in right.items()}


def main() -> None:
    """Print the accuracies, mean and standard deviation over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_dir")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=10_000)
    args = parser.parse_args()
    keys = {"dataset": "mnist", "model": "mlp", "norm": "none", "model-width": 0.25}
    keys |= {"limit-train": args.limit, "local-epochs": args.epochs, "learning-rate": 0.01}
    runs = [toy(args.data_dir, int(seed), **keys) for seed in args.seeds.split(",")]
    for name in runs[0]:
        values = [100 * run[name] for run in runs]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:26} {statistics.mean(values):5.1f} ± {spread:.1f}")


if __name__ == "__main__":
    main()
