"""The app on a real SuperLink and three real SuperNodes, with TLS and node authentication."""

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployment import EDGE, FOLDERS, NEWCOMER, SITES, BreakingLine, Deployment, split_on_disk
from harness import OwnFederation
from safetensors import safe_open
from safetensors.numpy import load_file

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs both tools"
    ),
]

OWN_KEYS = {key: EDGE[key] for key in EDGE.keys() - {"partition", "num-clients"}}
ONE_IS_ENOUGH = {"min-success-fraction": 0.3}  # of three: no second attempt at a round


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
