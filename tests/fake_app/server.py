"""A ServerApp that only writes the files of a run, as its run-name says."""

import os
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from writing import write_round, write_status

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Complete, fail, crash, die or hang."""
    keys = context.run_config
    folder = Path(str(keys["results-dir"])) / str(keys["run-name"])
    kind = str(keys["run-name"]).split("-")[0]
    if kind == "crash":
        raise RuntimeError("the fake server crashed before its first word")
    write_status(folder, "running", 0, phase="start")
    if kind == "die":
        os._exit(3)
    write_round(folder, 1)
    write_status(folder, "running", 1, phase="training", round=2, done=3, total=10)
    if kind == "hang":
        time.sleep(600)
    if kind == "fail":
        write_status(folder, "failed", 1, "round 2: 1 of 10 clients succeeded, 5 are needed")
        raise RuntimeError("round 2 failed")
    time.sleep(12 if kind == "slow" else 0)
    write_round(folder, 2)
    write_status(folder, "completed", 2)
