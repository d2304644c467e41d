"""``flwr run`` with its imports done beforehand: over a second of every run's start.

``python -m fedsyn_flwr.simulation.flwr_run`` loads Flower's command and then waits for one line of
JSON with its arguments and its log file; without one it ends.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsyn_flwr.files import ANSI


class Uncoloured(io.TextIOWrapper):
    """A text file without the terminal codes in which Flower colours its lines, file or not."""

    def write(self, text: str) -> int:
        """Write what is text of it."""
        super().write(ANSI.sub("", text))
        return len(text)


def hand_over(process: subprocess.Popen[bytes], arguments: Sequence[str], log: Path) -> None:
    """Tell a waiting process what to run."""
    assert process.stdin is not None
    request = {"arguments": list(arguments), "log": str(log)}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.close()


def main() -> None:
    """Load, wait, run."""
    from flwr.cli.app import app
    from flwr.common.logger import update_console_handler

    line = sys.stdin.readline()
    if not line:
        return
    request = json.loads(line)
    log = Path(request["log"]).open("ab", buffering=0)  # noqa: SIM115 - it lives as long as we
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    sys.stdout = sys.stderr = Uncoloured(log, encoding="utf-8", write_through=True)
    update_console_handler(colored=False)  # it keeps the stream that it was made with
    sys.argv = ["flwr", *request["arguments"]]
    app()


if __name__ == "__main__":
    main()
