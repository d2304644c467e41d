"""Ends what a killed command leaves behind: nobody else would, after a kill -9.

A process of its own that waits for its standard input to close, which the kernel sees to when
the command dies in whatever way, and then ends the command's family of processes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from fedsyn_flwr.simulation.processes import Family


class Guard:
    """Watches over a family for as long as the calling process lives."""

    def __init__(self, family: Family, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, family.mark, str(home)],
            cwd=Path(__file__).parents[2],  # where this package is found, installed or not
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """It is no longer needed; what is still alive of the family is ended all the same."""
        self._process.communicate()


def main() -> None:
    """``python -m fedsyn_flwr.simulation.cleanup MARK HOME``: end the family, remove its home."""
    sys.stdin.buffer.read()
    Family(sys.argv[1]).end(patience=0.0)
    shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
