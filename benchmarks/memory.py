"""Resident memory of actors and server over many rounds, model by model.

    python benchmarks/memory.py path/to/cifar10 [--rounds 200] [--models mlp lenet]

HFMDS-FL with 4 clients of 50 images on two actors, a synthesis every 20 rounds. Printed in MB:
resident set (RSS) and its proportional share (PSS: a page of n processes counts 1/n) of an actor
after a tenth of the rounds and after all; the actors' peak; the server's.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

from fedsyn_flwr.report.files import read_status
from fedsyn_flwr.simulation import resolve, runner
from fedsyn_flwr.simulation.processes import processes

MODELS = ["mlp", "lenet", "cnn", "vgg8", "resnet18"]
Sizes = dict[str, float]


def resident(pid: int) -> Sizes:
    """``Rss``, ``Pss`` and ``Peak`` of a process, MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    lines += Path(f"/proc/{pid}/status").read_text().splitlines()
    named = {"Rss:": "Rss", "Pss:": "Pss", "VmHWM:": "Peak"}
    pairs = (line.split() for line in lines)
    sizes = {named[p[0]]: int(p[1]) * 1024 / 1e6 for p in pairs if p and p[0] in named}
    if len(sizes) < len(named):
        raise ProcessLookupError(f"process {pid} is ending and has no memory any more")
    return sizes


def largest(word: str) -> Sizes:
    """Of the processes with this word, the largest of each size."""
    found = []
    for p in processes():
        if word in p.words:
            try:
                found.append(resident(p.pid))
            except OSError:  # it has just ended
                continue
    return {name: max(sizes[name] for sizes in found) for name in found[0]} if found else {}


def watched(folder: Path, rounds: list[int], ended: threading.Event) -> dict[int, list[Sizes]]:
    """Sizes of an actor and of the server once so many rounds are done."""
    seen: dict[int, list[Sizes]] = {}
    while not ended.wait(0.02):
        done = int(read_status(folder).get("rounds", 0))
        due = [r for r in rounds if r <= done and r not in seen]
        if due:
            both = [largest("ray::ClientAppActor"), largest("flwr-simulation")]
            if all(both):
                seen |= dict.fromkeys(due, both)
    return seen


def measured(model: str, data: str, rounds: int) -> str:
    """One model's line."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {
            "dataset": "cifar10",
            "data-dir": data,
            "partition": "iid",
            "limit-train": 200,
            "limit-test": 100,
            "model": model,
            "local-epochs": 1,
            "batch-size": 50,
            "synthesis-every": 20,
            "synthesis-per-client": 20,
            "synthesis-steps": 2,
            "privacy-report": False,
            "evaluate-every": 10_000,
            "num-server-rounds": rounds + 1,
            "results-dir": folder,
            "run-name": "benchmark",
        }
        prepared = resolve.prepare("digits-hfmds", flags=keys, clients=4, actors=2)
        ended, seen = threading.Event(), dict[int, list[Sizes]]()
        marks, run = [rounds // 10, rounds], Path(folder) / "benchmark"
        watch = threading.Thread(target=lambda: seen.update(watched(run, marks, ended)))
        watch.start()
        start = time.monotonic()
        result = runner.execute(prepared.run_config, prepared.options)
        ended.set()
        watch.join()
    if not result.completed:
        raise SystemExit(result.reason)
    (early, _), (late, server) = (seen[mark] for mark in marks)
    cells = [early["Rss"], late["Rss"], early["Pss"], late["Pss"], late["Peak"]]
    cells += [server["Rss"], server["Peak"], time.monotonic() - start]
    return f"| {model} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--models", nargs="+", default=MODELS)
    arguments = parser.parse_args()
    data, rounds = str(Path(arguments.data).resolve()), arguments.rounds
    early = rounds // 10
    print(
        f"| model | RSS after {early} | after {rounds} | PSS after {early} | after {rounds} ",
        end="",
    )
    print("| peak | server's RSS | peak | seconds |\n" + "|---" * 9 + "|")
    for model in arguments.models:
        print(measured(model, data, rounds), flush=True)


if __name__ == "__main__":
    main()
