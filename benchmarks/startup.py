"""Where the seconds go from `fedsyn run` to the first answer of a client.

    python benchmarks/startup.py [--repeats 3]

Ten clients on the embedded digits, two actors. Events are seen from outside, ten times a second:
processes by their command lines, the run's phases by its status.json. A client's first step is
some milliseconds before its answer.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedsyn_flwr.report.files import read_status
from fedsyn_flwr.simulation.processes import processes

PROCESSES = {
    "the SuperLink's process starts": "flower-superlink",
    "the simulation's process starts": "flwr-simulation",
    "an actor starts": "ray::ClientAppActor",
}
PHASES = {
    "the server is built": lambda status: bool(status),
    "all clients are known": lambda status: status.get("phase") == "training",
    "the first client has answered": lambda status: (
        (status.get("phase") == "training" and status.get("done", 0) > 0) or status.get("rounds")
    ),
}


def events(folder: Path) -> dict[str, float]:
    """Event → seconds after the start of one run."""
    command = [str(Path(sys.executable).with_name("fedsyn")), "run", "digits-fedavg"]
    command += ["-c", "num-server-rounds=1", "--name", "run", "--results-dir", str(folder)]
    before = {(p.pid, p.start) for p in processes()}
    start, seen = time.perf_counter(), dict[str, float]()
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while run.poll() is None:
        now = time.perf_counter() - start
        words = " ".join(p.words for p in processes() if (p.pid, p.start) not in before)
        status = read_status(folder / "run")
        found = [name for name, word in PROCESSES.items() if word in words]
        found += [name for name, reached in PHASES.items() if reached(status)]
        for name in found:
            seen.setdefault(name, now)
        time.sleep(0.1)
    return {**seen, "all is ended": time.perf_counter() - start}


def main() -> None:
    """Print each event's median time, and the time since the one before."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    runs = []
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(events(Path(folder)))
    seen = [name for name in runs[0] if all(name in run for run in runs)]  # some pass in between
    medians = {name: statistics.median(run[name] for run in runs) for name in seen}
    last = 0.0
    for name, seconds in sorted(medians.items(), key=lambda item: item[1]):
        print(f"{name:32} {seconds:5.1f} s  +{seconds - last:.1f}")
        last = seconds


if __name__ == "__main__":
    main()
