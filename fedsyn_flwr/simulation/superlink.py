"""A SuperLink of our own: private home, private port, ended by process id.

``flwr run`` otherwise starts, or silently joins, a daemon shared by the whole machine, with the
environment and working directory of whoever started it first.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self
from urllib.error import URLError

from fedsyn_flwr.compute.hardware import cpu_count
from fedsyn_flwr.config import Scalar, packed
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.simulation.app_copy import staged
from fedsyn_flwr.simulation.cleanup import Guard
from fedsyn_flwr.simulation.flwr_run import hand_over
from fedsyn_flwr.simulation.processes import Family
from fedsyn_flwr.simulation.ray_cluster import RayHead

START_SECONDS = 60.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CONNECTION = "fedsyn"
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else a `uv sync` of 3 GB per run
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # s until a submitted run starts; 1 as shipped
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns, and hides GPUs from 0-GPU actors
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # idle workers that no actor with its own paths takes
    "PYTHONUNBUFFERED": "1",
}


class SuperLinkError(UserError):
    """The SuperLink did not start; the message ends with its last words."""


class LocalSuperLink:
    """Context manager around one ``flower-superlink`` process in simulation mode, and one Ray.

    Everything it starts (SuperExec, simulations, Ray's daemons and actors) inherits a mark in
    the environment; on exit whatever carries the mark is ended, and nothing else. SIGTERM and
    SIGHUP are turned into ``KeyboardInterrupt`` while it is open, so that they end it too.

    Parameters
    ----------
    cpus : int, optional
        Ray's, by default all; a run that needs another number restarts it.
    wait : bool
        Whether entering waits until it answers, or leaves that to the first run.

    Attributes
    ----------
    home : Path
        Private ``FLWR_HOME``, removed on exit.
    port : int
        Of the HTTP API on 127.0.0.1.
    """

    def __init__(self, cpus: int | None = None, wait: bool = True) -> None:
        self.cpus = cpus or cpu_count()
        self.home = Path()
        self.port = 0
        self._waits = wait
        self._deadline = 0.0
        self.family = Family()
        self._ray: RayHead | None = None
        self._staged: dict[Path, Path] = {}
        self._guard: Guard | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._next: subprocess.Popen[bytes] | None = None  # waits for a run to submit
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="fedsyn-", dir=_short_tmp()))
        self._signals.enter_context(_handling(SIGNALS, _interrupt))
        try:
            self._guard = Guard(self.family, self.home)
            self._start()
            if self._waits:
                self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self,
        app_dir: Path,
        run_config: Mapping[str, Scalar],
        federation: Mapping[str, Scalar],
        log: Path,
    ) -> subprocess.Popen[bytes]:
        """Submit a run and stream its log lines to a file; the process ends when the run does.

        Parameters
        ----------
        app_dir : Path
            Folder of the Flower app.
        run_config : mapping
            Keys of ``[tool.flwr.app.config]`` to override.
        federation : mapping
            For ``--federation-config``, e.g. ``num-supernodes``.
        log : Path
            File for the log lines; its folder is made.

        Returns
        -------
        subprocess.Popen
            Of ``flwr run``. Its exit code says nothing about the run: see status.json.
        """
        self._wait()
        keys = self.home / f"run-{time.time_ns()}.toml"
        keys.write_text(to_toml(packed(run_config)), encoding="utf-8")
        own = dict(federation)
        self.ray.ensure(int(own.pop("init-args-num-cpus")))  # Ray's to know, not who joins it
        resources = " ".join(f"{key}={value}" for key, value in own.items())
        if app_dir not in self._staged:
            self._staged[app_dir] = staged(app_dir, self.home / f"app-{len(self._staged)}")
        arguments = ["run", str(self._staged[app_dir]), CONNECTION, "--stream"]
        arguments += ["--run-config", str(keys), "--federation-config", resources]
        log.parent.mkdir(parents=True, exist_ok=True)
        self.ahead()
        job, self._next = self._next, None
        assert job is not None
        hand_over(job, arguments, log)
        return job

    def ahead(self) -> None:
        """Prepare to submit the next run, for whoever has the time."""
        if self._next is None or self._next.poll() is not None:
            command = [sys.executable, "-m", hand_over.__module__]
            self._next = self._spawn(command, self.home / "submit.log", subprocess.PIPE)

    def simulations(self) -> list[int]:
        """Process ids of the simulations now running."""
        return [p.pid for p in self.family.alive() if "flwr-simulation" in p.words]

    def trouble(self) -> str:
        """Which of its servers has died, with its last words; '' while all is well."""
        if self._process is None or self._process.poll() is not None:
            return f"the SuperLink ended: {_last_words(self.home / 'superlink.log')}"
        return "" if self.ray.running else f"Ray ended: {_last_words(self.ray.log)}"

    def close(self) -> None:
        """End all that was started, by process id, and remove the home."""
        with self._signals, _handling((signal.SIGINT, *SIGNALS), signal.SIG_IGN):
            self.family.end()
            if self._process is not None:
                self._process.wait()  # no zombie
            shutil.rmtree(self.home, ignore_errors=True)
            if self._guard is not None:
                self._guard.dismiss()

    @property
    def ray(self) -> RayHead:
        """The Ray of its simulations."""
        if self._ray is None:
            self._ray = RayHead(_tool("ray"), (free_port(), free_port()), self.home, self._spawn)
        return self._ray

    def _start(self) -> None:
        self._deadline = time.monotonic() + START_SECONDS
        self.port = free_port()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        command = [_tool("flower-superlink"), "--insecure", "--simulation"]
        command += ["--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = self._spawn(command, self.home / "superlink.log")
        self.ray.ensure(self.cpus)
        self.ahead()

    def _wait(self) -> None:
        """Until the SuperLink answers; Ray is waited for by the simulations."""
        while not self._healthy():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > self._deadline:
                words = _last_words(self.home / "superlink.log")
                raise SuperLinkError(f"the SuperLink did not start: {words}")
            time.sleep(0.05)

    def _spawn(
        self, command: list[str], log: Path, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a marked child in a session of its own, out of reach of the terminal's Ctrl-C.

        In the home, too: Ray's actors import from their working directory first, and a user in
        another copy of the app would run that one's clients with this one's server.
        """
        with log.open("ab") as out:
            return subprocess.Popen(
                command,
                env=self._env(),
                stdin=stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                start_new_session=True,
            )

    def _env(self) -> dict[str, str]:
        env = {**os.environ, **QUIET, **self.family.environment, "FLWR_HOME": str(self.home)}
        env |= past_proxies(env)
        env["PATH"] = os.pathsep.join((_bin(), os.environ.get("PATH", os.defpath)))
        env["RAY_TMPDIR"] = str(self.home)
        env["RAY_ADDRESS"] = self.ray.address
        env.pop("FLWR_TRACING_ENABLED", None)
        return env

    def _healthy(self) -> bool:
        try:
            with DIRECT.open(f"http://127.0.0.1:{self.port}/health", timeout=1) as reply:
                return bool(reply.status == 200)
        except (URLError, OSError):
            return False


def past_proxies(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep this machine's own traffic from a proxy; those that name one stay.

    gRPC takes ``http_proxy`` for 127.0.0.1, too, and looks at ``no_grpc_proxy`` first.
    """
    exempt = env.get("no_proxy") or env.get("NO_PROXY") or ""
    found = {}
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        given = [part.strip() for part in env.get(name, exempt).split(",") if part.strip()]
        found[name] = ",".join([*given, *(host for host in LOOPBACK if host not in given)])
    return found


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def to_toml(keys: Mapping[str, Scalar]) -> str:
    """A flat TOML document; a JSON scalar is a TOML scalar."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _bin() -> str:
    """Folder of this interpreter's scripts, whether or not its environment is activated."""
    return str(Path(sys.executable).parent)


def _tool(name: str) -> str:
    path = shutil.which(name, path=_bin()) or shutil.which(name)
    if path is None:
        raise UserError(f"{name} is not beside {sys.executable}: `pip install 'flwr[simulation]'`")
    return path


def _short_tmp() -> str | None:
    """Ray's sockets live below the home, and a socket's path may have 104 letters only."""
    tmp = tempfile.gettempdir()
    return tmp if len(tmp) <= 20 or not Path("/tmp").is_dir() else "/tmp"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")


@contextlib.contextmanager
def _handling(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    """Handle signals differently for a while; ignored ones (nohup) stay ignored."""
    saved: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # Python allows it there only
        for number in numbers:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                saved[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in saved.items():
            signal.signal(number, old)
