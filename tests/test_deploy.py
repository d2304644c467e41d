"""The app on a real SuperLink and three real SuperNodes, with TLS and node authentication."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import OwnFederation
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file

from fedsyn_flwr.config import APP_DIR, read_conf
from fedsyn_flwr.data import load
from fedsyn_flwr.guard import Guard
from fedsyn_flwr.processes import Family
from fedsyn_flwr.superlink import QUIET, free_port, to_toml

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs both tools"
    ),
]

SITES = {"site-a": range(4), "site-b": range(3, 7), "site-c": range(6, 10)}
NEWCOMER = "site-d"
FOLDERS = {**SITES, NEWCOMER: range(5, 10)}
EDGE = read_conf(APP_DIR / "conf" / "edge.toml")
OWN_KEYS = {key: EDGE[key] for key in EDGE.keys() - {"partition", "num-clients"}}
BIN = Path(sys.executable).parent
CONNECTION = "deployed"

ONE_IS_ENOUGH = {"min-success-fraction": 0.3}  # of three: no second attempt at a round


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


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    split_on_disk(folder / "data")
    deployed = Deployment(folder)
    try:
        deployed.superlink()
        for name in FOLDERS:
            deployed.register(name)
        for name in SITES:
            deployed.supernode(name)
        yield deployed
    finally:
        deployed.family.end()
        deployed.guard.dismiss()


def rows_of(results: Path) -> list[Any]:
    path = results / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def saved_digest(folder: Path) -> str:
    with safe_open(folder / "model.safetensors", "np") as file:
        return str(file.metadata()["sha256"])


def status_of(results: Path) -> Any:
    return json.loads((results / "status.json").read_text())


def test_three_sites_train_the_model_of_one_process(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HFMDS-FL as conf/edge.toml has it, and within that conf's memory."""
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))
    results = deployment.run("hfmds")
    assert status_of(results)["status"] == "completed", deployment.said("user")
    rows = rows_of(results)
    assert [row["clients/failed"] for row in rows] == [0, 0, 0]
    assert rows[-1]["server/test_accuracy"] > 0.3  # chance is 0.1
    assert max(row["memory/client_peak_mb"] for row in rows) < 1000
    here = OwnFederation(tmp_path, deployment.folder / "data", list(SITES), **OWN_KEYS).run()
    assert saved_digest(results) == saved_digest(here.folder)
    for name in SITES:
        kept = list((deployment.folder / name / "state").glob(f"*/client-{name}/v*.safetensors"))
        assert kept, f"{name} keeps no state"


def test_mrtf_with_a_node_too_slow_for_the_round_timeout(deployment: Deployment) -> None:
    """site-c sleeps through round 2: it is not waited for longer than that, and is back then."""
    earlier = [row["seconds/training"] for row in rows_of(deployment.folder / "results" / "hfmds")]
    patience = max(3 * max(earlier, default=0), 20.0)  # by how busy the machine is
    keys = {"strategy": "mrtf", "mrtf-steps": 20, "round-timeout": patience}
    job, results = deployment.begin("mrtf", **keys)
    deployment.wait_until(lambda: len(rows_of(results)) == 1, "round 1", 400)
    deployment.send("site-c", signal.SIGSTOP)
    deployment.wait_until(lambda: len(rows_of(results)) == 2, "round 2", 400)
    deployment.send("site-c", signal.SIGCONT)
    job.wait(timeout=400)
    assert status_of(results)["status"] == "completed", deployment.said("user")
    rows = rows_of(results)
    assert [row["clients/failed"] for row in rows] == [0, 1, 0], deployment.said("user")
    assert rows[1]["seconds/training"] < patience + 15
    assert "failed: client 2: " in deployment.said("user")
    assert rows[-1]["refined/test_accuracy"] > 0.2  # chance is 0.1


@pytest.mark.parametrize(
    ("name", "authority", "complaint"),
    [
        ("stranger", "keys", "Failed to activate SuperNode"),  # a key that was not registered
        ("site-a", "other", "CERTIFICATE_VERIFY_FAILED"),  # not the node's authority's SuperLink
    ],
)
def test_strangers_are_refused(
    deployment: Deployment, name: str, authority: str, complaint: str
) -> None:
    log = deployment.folder / f"{name}.log"
    before = log.stat().st_size if log.exists() else 0
    node = deployment.supernode(name, authority)
    assert node.wait(timeout=60) != 0
    said = log.read_text()[before:]
    assert complaint in said, said


def test_a_run_outlives_its_nodes(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """site-c is killed once it has answered in round 1, site-d comes, site-b restarts in round 2.

    What the same changes do in one process has the same bits. So site-b has found its prototypes
    of round 1 and, in round 3, its pool of round 2; and site-d has been sent that pool.
    """
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))
    before, leaving = deployment.answers("site-b"), deployment.answers("site-c")
    job, results = deployment.begin("changing", **ONE_IS_ENOUGH)
    # Its name and its model are sent; long before it asks for the message of round 2.
    deployment.wait_until(lambda: deployment.answers("site-c") == leaving + 2, "its model", 400)
    deployment.send("site-c", signal.SIGKILL)
    deployment.wait_until(lambda: len(rows_of(results)) == 1, "round 1", 400)
    deployment.supernode(NEWCOMER)
    # Its name, its model and its images are sent; the server still waits for those of site-c.
    deployment.wait_until(lambda: deployment.answers("site-b") == before + 3, "images", 400)
    time.sleep(15)  # until the server, which looks every 3 s, has them: else they go with the node
    deployment.send("site-b", signal.SIGTERM)
    deployment.nodes["site-b"].wait(timeout=60)
    deployment.supernode("site-b")
    job.wait(timeout=500)
    assert status_of(results)["status"] == "completed", deployment.said("user")
    # If the SuperLink gave site-c up before site-b was back, that one missed a message, too.
    missed = rows_of(results)[1]["clients/failed"] == 3
    here = changed_in_one_process(tmp_path, deployment.folder / "data", missed)
    for key in ("clients/failed", "clients/joined", "bytes/down", "server/test_accuracy"):
        assert [r.get(key) for r in rows_of(results)] == [r.get(key) for r in here.rows()], key
    assert saved_digest(results) == saved_digest(here.folder)
    kept = f"{run_of(results)}/client-site-b/v3.safetensors"
    found = load_file(deployment.folder / "site-b" / "state" / kept)
    expected = load_file(tmp_path / "state" / run_of(here.folder) / "client-site-b/v3.safetensors")
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def changed_in_one_process(folder: Path, data: Path, missed: bool) -> OwnFederation:
    f = OwnFederation(folder, data, list(SITES), **{**OWN_KEYS, **ONE_IS_ENOUGH})
    _, restarted, leaving = f.proxies
    leaving.misses = {(2, "synthesis"), (2, "train")}
    restarted.misses = {(2, "train")} if missed else set()

    def swap() -> None:
        f.manager.unregister(leaving)
        f.manager.register(f.node("77", NEWCOMER))

    f.after(2, swap)
    f.run()
    assert [row["clients/failed"] for row in f.rows()] == [0, 2 + missed, 0]
    assert [row.get("clients/joined") for row in f.rows()] == [None, None, 1]
    return f


def test_a_broken_download_goes_on_where_it_broke(deployment: Deployment) -> None:
    """20 MB of model for site-b, whose line breaks every 6 MB: none is sent a second time whole."""
    line = BreakingLine(deployment.port, every=6_000_000)
    deployment.send("site-b", signal.SIGTERM)
    deployment.nodes["site-b"].wait(timeout=60)
    deployment.supernode("site-b", port=line.port)
    keys = {"strategy": "fedavg", "model": "mlp", "model-width": 2.0, "num-server-rounds": 2}
    results = deployment.run("broken", **keys)
    assert status_of(results)["status"] == "completed", deployment.said("user")
    rows = rows_of(results)
    assert [row["clients/failed"] for row in rows] == [0, 0]
    down = sum(row["bytes/down"] for row in rows) / len(SITES)
    assert down > 30e6
    assert line.breaks >= 4
    assert line.bytes < 1.8 * down


def run_of(results: Path) -> str:
    """What the run's state is kept under."""
    return str(json.loads((results / "config.json").read_text())["run"])


def test_wrong_data_on_a_node_ends_the_run_with_one_line(deployment: Deployment) -> None:
    (deployment.folder / "data" / "site-b" / "zebra").mkdir()
    status = status_of(deployment.run("wrong"))
    assert status["status"] == "failed"
    assert re.fullmatch(
        "a client cannot start: SuperNode site-b: .* has a class 'zebra', which is not among .*"
        "set the run's key labels",
        status["reason"],
    ), status
