"""The app on a real SuperLink and three real SuperNodes, with TLS and node authentication."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import OwnFederation
from PIL import Image
from safetensors import safe_open

from fedsyn_flwr.config import APP_DIR, read_conf
from fedsyn_flwr.data import load
from fedsyn_flwr.processes import Family
from fedsyn_flwr.superlink import QUIET, free_port, to_toml

pytestmark = [pytest.mark.deploy, pytest.mark.slow]

SITES = {"site-a": range(4), "site-b": range(3, 7), "site-c": range(6, 10)}
KEYS: dict[str, Any] = {
    "strategy": "hfmds",
    "learning-rate": 0.1,
    "local-epochs": 2,
    "num-server-rounds": 3,
    "synthesis-every": 2,
    "synthesis-per-client": 8,
    "synthesis-steps": 20,
}
BIN = Path(sys.executable).parent
CONNECTION = "deployed"


class Deployment:
    """A SuperLink and its SuperNodes on this machine, each with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.family, self.port = folder, Family(), free_port()
        script = APP_DIR / "deploy" / "make-credentials.sh"
        for authority, nodes in (("keys", [*SITES, "stranger"]), ("other", [])):
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
        self, name: str, authority: str = "keys", key: str = ""
    ) -> subprocess.Popen[bytes]:
        self.nodes[name] = self.start(
            name,
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--root-certificates", str(self.folder / authority / "ca.crt")),
            *("--auth-supernode-private-key", str(self.keys / (key or name))),
            *("--node-config", f"data-path='{self.folder / 'data' / name}'"),
            *("--max-retries", "2"),
        )
        return self.nodes[name]

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

    def run(self, name: str, after: tuple[int, Any] | None = None, **keys: Any) -> Path:
        """Run the app to its end, doing something after a round; its results folder."""
        results = self.folder / "results"
        own = {"results-dir": str(results), "run-name": name, "partition": "own"}
        conf = self.folder / "run.toml"
        conf.write_text(to_toml({**KEYS, **own, "num-clients": len(SITES), **keys}))
        job = self.start(
            "user", "flwr", "run", str(APP_DIR), CONNECTION, "--stream", "--run-config", str(conf)
        )
        if after:
            reached, action = after
            self.wait_until(lambda: len(rows_of(results / name)) >= reached, "the round", 400)
            action()
        job.wait(timeout=300)
        return results / name

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_until(self, condition: Any, what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.5)


def split_on_disk(folder: Path) -> None:
    """The digits as three hospitals would have them: folders of PNGs, some classes each."""
    train = load("digits", "train")
    for i, (image, label) in enumerate(zip(train.images, train.labels, strict=True)):
        sites = [name for name, classes in SITES.items() if label in classes]
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
        for name in SITES:
            deployed.flwr("supernode", "register", str(deployed.keys / f"{name}.pub"))
            deployed.supernode(name)
        yield deployed
    finally:
        deployed.family.end()


def rows_of(results: Path) -> list[Any]:
    path = results / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def saved_digest(folder: Path) -> str:
    with safe_open(folder / "model.safetensors", "np") as file:
        return str(file.metadata()["sha256"])


def test_three_sites_train_the_model_of_one_process(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))
    results = deployment.run("run")
    status = json.loads((results / "status.json").read_text())
    assert status["status"] == "completed", (status, deployment.said("user"))
    rows = rows_of(results)
    assert [row["clients/failed"] for row in rows] == [0, 0, 0]
    assert rows[-1]["server/test_accuracy"] > 0.3  # chance is 0.1
    here = OwnFederation(tmp_path, deployment.folder / "data", list(SITES), **KEYS).run()
    assert saved_digest(results) == saved_digest(here.folder)
    for name in SITES:
        kept = list((deployment.folder / name / "state").glob(f"*/client-{name}/v*.safetensors"))
        assert kept, f"{name} keeps no state"


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


def test_a_restarted_node_finds_its_state(deployment: Deployment) -> None:
    """The pool came in round 4 and is not sent again: training in round 7 needs the node's copy."""

    def restart_site_b() -> None:
        deployment.nodes["site-b"].terminate()
        deployment.nodes["site-b"].wait(timeout=60)
        deployment.supernode("site-b")

    keys = {"num-server-rounds": 7, "synthesis-every": 4, "round-timeout": 90.0}
    results = deployment.run("restarted", after=(4, restart_site_b), **keys)
    status = json.loads((results / "status.json").read_text())
    assert status["status"] == "completed", (status, deployment.said("user"))
    failed = [row["clients/failed"] for row in rows_of(results)]
    assert failed[:4] == [0, 0, 0, 0]
    assert max(failed) <= 1  # what it was doing when it was stopped is lost
    assert failed[-1] == 0, (failed, deployment.said("user"))


def test_the_edge_conf_runs(deployment: Deployment) -> None:
    results = deployment.run("edge", **read_conf(APP_DIR / "conf" / "edge.toml"))
    rows = rows_of(results)
    assert len(rows) == 3, deployment.said("user")
    assert max(row["memory/client_peak_mb"] for row in rows) < 1000


def test_wrong_data_on_a_node_ends_the_run_with_one_line(deployment: Deployment) -> None:
    zebra = deployment.folder / "data" / "site-b" / "zebra"
    zebra.mkdir()
    results = deployment.run("wrong")
    status = json.loads((results / "status.json").read_text())
    assert status["status"] == "failed"
    assert re.fullmatch(
        "a client cannot start: SuperNode site-b: .* has a class 'zebra', which is not among .*"
        "set the run's key labels",
        status["reason"],
    ), status
