"""A SuperLink and SuperNodes on this machine, and a line between them that breaks."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image

from fedsyn_flwr.config import APP_DIR, read_conf
from fedsyn_flwr.data import load
from fedsyn_flwr.simulation.cleanup import Guard
from fedsyn_flwr.simulation.processes import Family
from fedsyn_flwr.simulation.superlink import QUIET, free_port, to_toml

SITES = {"site-a": range(4), "site-b": range(3, 7), "site-c": range(6, 10)}
NEWCOMER = "site-d"
FOLDERS = {**SITES, NEWCOMER: range(5, 10)}
EDGE = read_conf(APP_DIR / "conf" / "edge.toml")
BIN = Path(sys.executable).parent
CONNECTION = "deployed"


class Deployment:
    """A SuperLink and its SuperNodes on this machine, each with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.family, self.port = folder, Family(), free_port()
        self.guard = Guard(self.family, folder)  # should the tests be killed
        script = APP_DIR / "deploy" / "make-credentials.sh"
        for authority, nodes in (("keys", [*FOLDERS, "stranger"]), ("other", [])):
            command = ["sh", str(script), str(folder / authority), "127.0.0.1", *nodes]
            subprocess.run(command, check=True, capture_output=True)
        self.keys = folder / "keys"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A process of this deployment; its output goes to NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def environment(self, name: str) -> dict[str, str]:
        """As on a machine of its own: nothing is shared but the network."""
        home = self.folder / name
        own = {f"FEDSYN_{kind}_DIR": str(home / kind.lower()) for kind in ("CACHE", "STATE")}
        path = os.pathsep.join((str(BIN), os.environ.get("PATH", os.defpath)))
        return {
            **os.environ,
            **QUIET,
            **self.family.environment,
            **own,
            "FLWR_HOME": str(home / "flwr"),
            "OMP_NUM_THREADS": "1",
            "PATH": path,
        }

    def superlink(self) -> None:
        certificates = [
            *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
            *("--ssl-certfile", str(self.keys / "superlink.crt")),
            *("--ssl-keyfile", str(self.keys / "superlink.key")),
        ]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.start(
            "superlink", "flower-superlink", *certificates, "--enable-supernode-auth", *where
        )
        config = self.folder / "user" / "flwr" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.keys / "ca.crt"}"\n'
        )
        self.wait_until(lambda: "nodes" in self.flwr("supernode", "list"), "the SuperLink answers")

    def supernode(
        self, name: str, authority: str = "keys", key: str = "", port: int = 0
    ) -> subprocess.Popen[bytes]:
        self.nodes[name] = self.start(
            name,
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{port or self.port}", "--port", str(free_port())),
            *("--root-certificates", str(self.folder / authority / "ca.crt")),
            *("--auth-supernode-private-key", str(self.keys / (key or name))),
            *("--node-config", f"data-path='{self.folder / 'data' / name}'"),
            *(() if port else ("--max-retries", "2")),  # a stranger is to give up
        )
        return self.nodes[name]

    def register(self, name: str) -> None:
        key = str(self.keys / f"{name}.pub")
        said = self.flwr("supernode", "register", key)
        assert '"success": true' in said, said

    def send(self, name: str, number: int) -> None:
        """A signal to a SuperNode and what it has started."""
        os.killpg(self.nodes[name].pid, number)

    def flwr(self, *arguments: str) -> str:
        """What a command of the user prints."""
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments, CONNECTION, "--format", "json"],
            env=self.environment("user"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr

    def begin(self, name: str, **keys: Any) -> tuple[subprocess.Popen[bytes], Path]:
        """Submit a run of the edge conf with other keys; its job and its results folder."""
        results = self.folder / "results"
        conf = self.folder / "run.toml"
        own = {"results-dir": str(results), "run-name": name}
        conf.write_text(to_toml({**EDGE, **own, **keys}))
        command = ["flwr", "run", str(APP_DIR), CONNECTION, "--stream", "--run-config", str(conf)]
        return self.start("user", *command), results / name

    def run(self, name: str, **keys: Any) -> Path:
        """Run the app to its end; its results folder."""
        job, results = self.begin(name, **keys)
        job.wait(timeout=500)
        return results

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def answers(self, name: str) -> int:
        """How many messages a node has answered."""
        return self.said(name).count("Sent successfully")

    def wait_until(self, condition: Any, what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.1)


class BreakingLine:
    """A way to a port of this machine on which a connection breaks after every so many bytes.

    Counted are the bytes that come from there; the connection that brings the last of them goes.
    """

    def __init__(self, port: int, every: int) -> None:
        self.target, self.every = port, every
        self.bytes = self.breaks = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # all is ended
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                args = (source, sink, source is far)
                threading.Thread(target=self.pump, args=args, daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while content := source.recv(1 << 16):
                sink.sendall(content)
                before, self.bytes = self.bytes, self.bytes + counted * len(content)
                if self.bytes // self.every > before // self.every:
                    self.breaks += 1
                    break
        except OSError:
            pass  # the other direction has closed it
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def split_on_disk(folder: Path) -> None:
    """The digits as hospitals would have them: folders of PNGs, some classes each."""
    train = load("digits", "train")
    for i, (image, label) in enumerate(zip(train.images, train.labels, strict=True)):
        sites = [name for name, classes in FOLDERS.items() if label in classes]
        path = folder / sites[i % len(sites)] / str(label) / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(path)
