"""What one client and one reply cost, per model: the numbers of docs/scaling.md.

    python benchmarks/scaling.py path/to/cifar10 [--samples 200]

Every model runs in a process of its own with one thread: one client of `--samples` images trains
one epoch (batch 50), then HFMDS-FL inverts 16 of them for 10 steps, then the server takes in the
reply. Processor seconds, not those of the clock, so that other work on the machine hardly counts.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MODELS = ("mlp", "lenet", "cnn", "vgg8", "resnet18")
ROUNDS = 3


def measured(data: str, model: str, samples: int) -> dict[str, Any]:
    """One model's row, in this process."""
    import torch

    from fedsyn_flwr import config, registry
    from fedsyn_flwr.client.worker import Worker
    from fedsyn_flwr.messages.payload import from_parameters, nbytes, to_parameters
    from fedsyn_flwr.server.averaging import RunningAverage
    from fedsyn_flwr.server.client_versions import Kept

    torch.set_num_threads(1)
    keys: dict[str, Any] = {
        "strategy": "hfmds",
        "dataset": "cifar10",
        "data-dir": data,
        "partition": "iid",
        "limit-train": samples,
        "model": model,
        "local-epochs": 1,
        "batch-size": 50,
        "device": "cpu",
        "synthesis-per-client": 16,
        "synthesis-steps": 10,
        "privacy-report": False,
        "state-dir": "/nonexistent",
    }
    worker = Worker(config.load(config.merged(keys)), 1)
    layout, vectors = worker.flat.layout, worker.flat.copy_vectors()
    base = peak()
    client = registry.method("fedavg").client(worker, 0)
    sent = to_parameters({"model": vectors}, layout)
    message = {"run": "r", "round": 1, "phase": "train", "settled": 0, "pool": 0}
    message |= Kept().words(0)

    def train() -> Any:
        from flwr.common import parameters_to_ndarrays

        return client.fit(parameters_to_ndarrays(sent), message)

    training = seconds(train)
    trained = peak()
    average = RunningAverage()
    folding = seconds(lambda: average.add(from_parameters(sent, layout)["model"], 1.0))
    serialising = seconds(lambda: to_parameters({"model": vectors}, layout))
    metrics = train()[2]
    return {
        "model": model,
        "parameters": int(worker.flat.trainable.numel()),
        "message_mb": nbytes(sent) / 1e6,
        "gflop_per_sample": metrics["flops/training"] / samples / 1e9,
        "train_ms_per_sample": 1000 * training / samples,
        "fold_ms": 1000 * folding,
        "serialise_ms": 1000 * serialising,
        "ready_mb": base,
        "peak_mb": trained,
    }


def seconds(work: Callable[[], Any]) -> float:
    """Least processor seconds of a few times, the first, which loads code, left out."""
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found[1:])


def peak() -> float:
    """Peak resident memory so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="CIFAR-10 in Hugging Face layout")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--model", help="one model in this process, as JSON")
    options = parser.parse_args()
    if options.model:
        print(json.dumps(measured(options.data, options.model, options.samples)))
        return
    for n, model in enumerate(MODELS):
        command = [sys.executable, __file__, options.data, "--samples", str(options.samples)]
        done = subprocess.run([*command, "--model", model], check=True, stdout=subprocess.PIPE)
        row = json.loads(done.stdout.splitlines()[-1])
        if not n:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
