"""Stands in for `flwr run` and all behind it: ``python job.py FOLDER KIND [resume]``."""

import sys
import time
from pathlib import Path

from writing import rewind, write_round, write_status

folder, kind, resume = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["resume"]
if kind == "rayless":
    time.sleep(60)
if kind == "refuse":
    print("RuntimeError: no server started", flush=True)
    sys.exit(1)
if resume and kind == "damaged":
    print("ERROR :      error: checkpoint c is damaged: remove", flush=True)
    sys.exit(0)
if resume and (folder / "metrics.jsonl").exists():
    kind = "ok"  # what broke it is mended
    rewind(folder, 1)
    write_status(folder, "running", 1, phase="start")
else:
    write_status(folder, "running", 0, phase="start")
    write_round(folder, 1)
write_status(folder, "running", 1, phase="training", round=2, done=3, total=10)
if kind in ("hang", "vanish", "blink"):
    time.sleep(60)
if kind == "mute":
    sys.exit(0)
if kind == "fail":
    write_status(folder, "failed", 1, "round 2: 1 of 10 clients succeeded, 5 are needed")
    sys.exit(0)
write_round(folder, 2)
write_status(folder, "completed", 2)
if kind == "linger":
    time.sleep(60)
