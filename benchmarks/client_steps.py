"""Seconds of a client's training, method by method, against FedAvg's.

    python benchmarks/client_steps.py path/to/cifar10 [--work W1] [--rounds 6]

Real runs of the app, one actor of one thread, 4 clients: the images, the model and the batches of
`round_time.py`. A method's first two rounds are not counted: in them it may lack what it compares
with (MOON's previous model, HFMDS-FL's pool). Beside the ratio of seconds stands that of the
operations that were counted.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from round_time import COMMON, WORK

from fedsyn_flwr.simulation import resolve, runner

CLIENTS, WARM_UP = 4, 2
SHORT = {"synthesis-steps": 2, "synthesis-per-client": 64, "privacy-report": False}
METHODS: dict[str, dict[str, str | int | float | bool]] = {
    "fedavg": {},
    "fedprox": {},
    "scaffold": {},
    "moon": {},
    "fedmmd": {},
    "fedmix": {"privacy-report": False},
    "fmds": SHORT,
    "hfmds": SHORT,
    "hfmds, joint batch": {**SHORT, "hfmds-joint-batch": True},
}


def cost(arm: str, work: str, data: str, rounds: int) -> tuple[float, float]:
    """Seconds and operations of a client's training in a round, means; of those the medians."""
    samples = int(WORK[work]["limit-train"]) * CLIENTS // 20
    with tempfile.TemporaryDirectory() as folder:
        keys = {
            **COMMON,
            **WORK[work],
            **METHODS[arm],
            "limit-train": samples,
            "data-dir": data,
            "results-dir": folder,
            "num-server-rounds": rounds + WARM_UP,
            "strategy": arm.split(",")[0],
            "run-name": "benchmark",
        }
        prepared = resolve.prepare("digits-fedavg", flags=keys, clients=CLIENTS, actors=1)
        result = runner.execute(prepared.run_config, prepared.options)
    if not result.completed:
        raise SystemExit(result.reason)
    rows = result.rows[WARM_UP:]
    names = "client_seconds/training", "flops/training"
    seconds, flops = (statistics.median(row[name] for row in rows) for name in names)
    return seconds, flops


def main() -> None:
    """Print each method's seconds and its ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--work", choices=WORK, default="W1")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    data = str(Path(arguments.data).resolve())
    base: tuple[float, float] | None = None
    for arm in METHODS:
        found = cost(arm, arguments.work, data, arguments.rounds)
        base = base or found
        seconds, flops = (ours / plain for ours, plain in zip(found, base, strict=True))
        print(f"{arm:20} {found[0]:.3f} s  ratio {seconds:.2f}  operations {flops:.2f}", flush=True)


if __name__ == "__main__":
    main()
