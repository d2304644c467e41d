"""What a federation of many clients costs besides their training.

    python benchmarks/many_clients.py path/to/mnist [--clients 1000] [--rounds 20]

Ten clients a round, 60 images each, a perceptron of few weights, two actors. The enrolment is seen
from outside, in status.json. A round's overhead is what it takes longer than its clients' own
seconds shared between the actors; the first round is not counted.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from fedsyn_flwr.report.files import read_status
from fedsyn_flwr.simulation import resolve, runner

IN_A_ROUND, ACTORS = 10, 2


def phases(folder: Path, ended: threading.Event) -> dict[str, float]:
    """When each phase of a run was first seen."""
    seen: dict[str, float] = {}
    while not ended.wait(0.05):
        phase = str(read_status(folder).get("phase", ""))
        seen.setdefault(phase, time.monotonic())
    return seen


def main() -> None:
    """Print the enrolment's seconds and the rounds'."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    clients = arguments.clients
    with tempfile.TemporaryDirectory() as folder:
        keys = {
            "dataset": "mnist",
            "data-dir": str(Path(arguments.data).resolve()),
            "partition": "iid",
            "limit-train": min(60_000, 60 * clients),
            "strategy": "fedavg",
            "model": "mlp",
            "model-width": 0.1,
            "local-epochs": 1,
            "fraction-fit": IN_A_ROUND / clients,
            "num-server-rounds": arguments.rounds,
            "evaluate-every": 10_000,
            "checkpoint-every": 0,
            "results-dir": folder,
            "run-name": "benchmark",
        }
        prepared = resolve.prepare("digits-fedavg", flags=keys, clients=clients, actors=ACTORS)
        ended, seen = threading.Event(), dict[str, float]()
        run = Path(folder) / "benchmark"
        watch = threading.Thread(target=lambda: seen.update(phases(run, ended)))
        watch.start()
        result = runner.execute(prepared.run_config, prepared.options)
        ended.set()
        watch.join()
    if not result.completed:
        raise SystemExit(result.reason)
    rows = result.rows[1:-1]  # the last one is evaluated
    total = [row["seconds/round"] for row in rows]
    own = [row["client_seconds/training"] * IN_A_ROUND / ACTORS for row in rows]
    overhead = [whole - part for whole, part in zip(total, own, strict=True)]
    print(f"enrolment of {clients} clients: {seen['training'] - seen['waiting for clients']:.1f} s")
    for name, values in (("round", total), ("clients", own), ("overhead", overhead)):
        print(f"{name:9} median {statistics.median(values):.3f} s  max {max(values):.3f}")


if __name__ == "__main__":
    main()
