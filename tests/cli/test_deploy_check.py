"""`fedsyn deploy-check`: each thing that is wrong is one line, and everything right passes."""

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from PIL import Image
from typer.testing import CliRunner

from fedsyn_flwr import config
from fedsyn_flwr.cli import deployment_checks
from fedsyn_flwr.cli.app import app
from fedsyn_flwr.cli.deployment_checks import Place
from fedsyn_flwr.config import APP_DIR, read_conf
from fedsyn_flwr.errors import UserError

pytestmark = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs both tools"
)
CONFIG = config.load(config.merged(read_conf(APP_DIR / "conf" / "edge.toml")))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, keys/ and other/, each with a SuperLink and a node."""
    folder = tmp_path_factory.mktemp("credentials")
    for authority in ("keys", "other"):
        script = APP_DIR / "deploy" / "make-credentials.sh"
        command = ["sh", str(script), str(folder / authority), "127.0.0.1", "site-a"]
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDSYN_CACHE_DIR", "FEDSYN_STATE_DIR", "FLWR_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def keys(made: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made / "keys", tmp_path / "keys"))


@pytest.fixture
def superlink(made: Path) -> Iterator[str]:
    """The address of something that answers with the SuperLink's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "keys" / "superlink.crt", made / "keys" / "superlink.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    context.wrap_socket(listening.accept()[0], server_side=True).close()
                except ssl.SSLError:  # a client that does not trust us
                    continue
                except OSError:  # closed
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def site(folder: Path, name: str = "7", size: int = 8) -> Path:
    (folder / name).mkdir(parents=True)
    Image.fromarray(np.zeros((size, size), np.uint8)).save(folder / name / "0.png")
    return folder


def wrong(place: Place, settings: Any = CONFIG) -> dict[str, str]:
    found = {}
    for name, check in deployment_checks.checks(place, settings):
        try:
            assert check()
        except UserError as error:
            found[name] = str(error)
    assert "\n" not in "".join(found.values())
    return found


def test_a_node_where_all_is_well(keys: Path, superlink: str, tmp_path: Path) -> None:
    options = ["--superlink", superlink, "--root-certificates", str(keys / "ca.crt")]
    options += ["--auth-supernode-private-key", str(keys / "site-a")]
    options += ["--node-config", f"data-path='{site(tmp_path / 'site-a')}'"]
    result = CliRunner().invoke(app, ["deploy-check", "edge", *options])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    names = [line.split(":")[0].removeprefix("ok").strip() for line in lines]
    assert names == ["authority", "SuperLink", "node's key", "data", "memory", "disk", "run"]
    assert "SuperNode site-a: 1 images (1, 8, 8) of classes 7" in result.output


def test_a_node_where_nothing_is(keys: Path, made: Path, superlink: str, tmp_path: Path) -> None:
    (keys / "site-a").chmod(0o644)
    place = Place(
        superlink=superlink,
        root_certificates=made / "other" / "ca.crt",
        node_key=keys / "site-a",
        node_config=f"data-path='{site(tmp_path / 'site-a', 'zebra')}'",
    )
    found = wrong(place)
    assert found.keys() == {"SuperLink", "node's key", "data"}
    assert "its certificate does not fit" in found["SuperLink"]
    assert f"chmod 600 {keys / 'site-a'}" in found["node's key"]
    assert "has a class 'zebra', which is not among the run's 10" in found["data"]
    result = CliRunner().invoke(app, ["deploy-check", "--superlink", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "127.0.0.1:1 does not answer" in result.output


def test_images_of_another_size(tmp_path: Path) -> None:
    place = Place(superlink=None, node_config=f"data-path='{site(tmp_path / 'a', size=9)}'")
    assert "images are (1, 9, 9), digits's (1, 8, 8): resize" in wrong(place)["data"]


def test_the_superlinks_certificate(keys: Path, made: Path) -> None:
    def found(**other: Path) -> dict[str, str]:
        paths = {"root_certificates": "ca.crt", "certificate": "superlink.crt"}
        own: dict[str, Any] = {field: keys / name for field, name in paths.items()}
        return wrong(Place(**{**own, "certificate_key": keys / "superlink.key", **other}))

    assert found() == {}
    other = made / "other"
    assert "is not signed by" in found(root_certificates=other / "ca.crt")["certificate"]
    complaint = found(certificate_key=other / "superlink.key")["certificate"]
    assert "is not the key of" in complaint
    (keys / "superlink.crt").write_text("no PEM")
    assert "superlink.crt is no certificate" in found()["certificate"]


def test_an_expired_certificate(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "old")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    made = made.public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(datetime(2020, 1, 1)).not_valid_after(datetime(2021, 1, 1))
    old = tmp_path / "old.crt"
    old.write_bytes(made.sign(key, hashes.SHA384()).public_bytes(Encoding.PEM))
    with pytest.raises(UserError, match="valid from 2020-01-01 to 2021-01-01, not today"):
        deployment_checks.authority(old)


def test_the_connection_of_a_user(keys: Path, superlink: str) -> None:
    assert "it needs [superlink.NAME]" in wrong(Place())["connection"]
    home = Path(os.environ["FLWR_HOME"])
    home.mkdir()
    entry = f'[superlink]\ndefault = "far"\n[superlink.far]\naddress = "{superlink}"\n'
    (home / "config.toml").write_text(entry)
    assert "far has no root-certificates" in wrong(Place())["connection"]
    (home / "config.toml").write_text(f'{entry}root-certificates = "{keys / "ca.crt"}"\n')
    assert wrong(Place()) == {}
    assert "KeyError('near')" in wrong(Place(connection="near"))["connection"]
    for entry in ('address = ":local:"\n', "options.num-supernodes = 2\n"):
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\n{entry}'
        )
        found = wrong(Place())
        assert "local is a simulation on this machine, no deployment" in found["connection"]
        assert "SuperLink" not in found


def test_too_little_room() -> None:
    with pytest.raises(UserError, match=r"a client takes about 1000000000"):
        deployment_checks.memory(needed=10**9)
    with pytest.raises(UserError, match=r"MB are free, 1000000000 should be: make room"):
        deployment_checks.disk(CONFIG, needed=10**9)


def test_a_run_that_is_no_deployment() -> None:
    settings = config.load(config.merged())
    assert 'needs partition = "own"' in wrong(Place(superlink="127.0.0.1:1"), settings)["run"]
