"""``flwr run`` with its imports done beforehand: over a second of every run's start.

``python -m fedsyn_flwr.submit`` loads Flower's command and then waits for one line of JSON with its
arguments and its log file; without one it ends.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def hand_over(process: subprocess.Popen[bytes], arguments: Sequence[str], log: Path) -> None:
    """Tell a waiting process what to run."""
    assert process.stdin is not None
    request = {"arguments": list(arguments), "log": str(log)}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.close()


def main() -> None:
    """Load, wait, run."""
    from flwr.cli.app import app

    line = sys.stdin.readline()
    if not line:
        return
    request = json.loads(line)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.argv = ["flwr", *request["arguments"]]
    app()


if __name__ == "__main__":
    main()
