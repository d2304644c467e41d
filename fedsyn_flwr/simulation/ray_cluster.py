"""One Ray for all runs of a SuperLink.

A simulation otherwise starts a Ray of its own and waits about five seconds for it. This one is
up by the time the first run needs it and stays for the next; its actors end with each run.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

Spawn = Callable[[list[str], Path], subprocess.Popen[bytes]]


class RayHead:
    """A ``ray start --head`` on ports of 127.0.0.1, started when first asked for.

    Parameters
    ----------
    tool : str
        Path of the ``ray`` command.
    ports : pair of int
        Two free ones: where simulations find it, by RAY_ADDRESS, and for a server that nobody
        uses but Ray insists on.
    home : Path
        Gets its temporary files and its log.
    spawn : callable
        Starts a command with a log file.
    """

    def __init__(self, tool: str, ports: tuple[int, int], home: Path, spawn: Spawn) -> None:
        self.address = f"127.0.0.1:{ports[0]}"
        self.log = home / "ray.log"
        self._command = [tool, "start", "--head", "--block", "--node-ip-address", "127.0.0.1"]
        self._command += ["--port", str(ports[0]), "--ray-client-server-port", str(ports[1])]
        self._command += ["--temp-dir", str(home / "ray"), "--disable-usage-stats"]
        self._command += ["--include-dashboard", "false", "--include-log-monitor", "false"]
        self._command += ["--no-monitor", "--dashboard-agent-listen-port", "0"]
        self._command += ["--min-worker-port", "0", "--max-worker-port", "0"]  # any that is free
        self._spawn = spawn
        self._cpus = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it has been started and not died since."""
        return self._process is not None and self._process.poll() is None

    def ensure(self, cpus: int) -> None:
        """Have one with so many CPUs; it answers some seconds later.

        Simulations size their pool of actors by its CPUs, so another number needs another Ray.
        """
        if self.running and cpus == self._cpus:
            return
        self.stop()
        self._cpus = cpus
        self.log.unlink(missing_ok=True)
        self._process = self._spawn([*self._command, "--num-cpus", str(cpus)], self.log)

    def stop(self, patience: float = 10.0) -> None:
        """End it, and with it all its processes, which share its fate.

        Ray may swallow the SIGTERM that comes while it starts: SIGKILL after ``patience`` seconds.
        """
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
