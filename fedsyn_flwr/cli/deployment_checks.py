"""What a deployment needs, looked at before anything is started.

Every check is a function that says what it found, or raises UserError with what is wrong and what
to do.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.config import parse_config_args

from fedsyn_flwr import build, preflight
from fedsyn_flwr.client.state import default_root
from fedsyn_flwr.client.supernode import own_data
from fedsyn_flwr.config import Config
from fedsyn_flwr.data.cache import default_cache_dir
from fedsyn_flwr.errors import UserError

CLIENT_MB = 900
"""Peak resident memory of a client process with small images (docs/deployment.md)."""
DISK_MB = 1000
"""Room for a run's code, state and synthetic pool; the decoded images come on top."""
SECONDS = 5.0

Check = tuple[str, Callable[[], str]]


@dataclass(frozen=True)
class Place:
    """What the machine at hand is to be: the options of the commands that will be started there.

    ``superlink`` and ``root_certificates`` are a node's; without them those of ``connection`` in
    ``$FLWR_HOME/config.toml`` count, which `flwr run` uses. ``certificate`` and its ``key`` are the
    SuperLink's.
    """

    connection: str | None = None
    superlink: str | None = None
    root_certificates: Path | None = None
    node_key: Path | None = None
    node_config: str | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None


def checks(place: Place, settings: Config) -> Iterator[Check]:
    """The checks that apply to a place, with their names."""
    server = place.certificate is not None
    address, ca = place.superlink, place.root_certificates
    if address is None and not server:
        found = Connection(place.connection)
        yield "connection", found.say
        address, ca = found.address, ca or found.ca
    if ca is not None:
        yield "authority", lambda: authority(ca)
    if address is not None:
        yield "SuperLink", lambda: reachable(address, ca)
    if place.certificate is not None:
        pair = place.certificate, place.certificate_key
        yield "certificate", lambda: certificate(*pair, ca)
        yield "test images", lambda: server_images(settings)
    if place.node_key is not None:
        key = place.node_key
        yield "node's key", lambda: node_key(key)
    if place.node_config is not None:
        text = place.node_config
        yield "data", lambda: data(text, settings)
        yield "memory", memory
    if place.node_config is not None or server:
        yield "disk", lambda: disk(settings)
    yield "run", lambda: run(settings)


LOCAL = ":local:"  # Flower's word for a SuperLink that flwr run starts, with a simulation


class Connection:
    """A connection of ``$FLWR_HOME/config.toml``: ``address`` and ``ca``, None where it has none.

    Parameters
    ----------
    name : str or None
        None for the default one.
    """

    def __init__(self, name: str | None) -> None:
        self.path = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser() / "config.toml"
        self.address, self.ca, self.problem = None, None, ""
        try:
            known = tomllib.loads(self.path.read_text(encoding="utf-8"))["superlink"]
            self.name = name or known["default"]
            entry = known[self.name]
        except (OSError, ValueError, KeyError) as error:
            wanted = f"[superlink.{name or 'NAME'}] with address and root-certificates"
            self.problem = f"{self.path}: {error!r}: it needs {wanted}, see docs/deployment.md"
            return
        if entry.get("address", LOCAL) == LOCAL:
            self.problem = (
                f"{self.path}: {self.name} is a simulation on this machine, no deployment: "
                "name the SuperLink's connection by --connection, see docs/deployment.md"
            )
            return
        self.address = entry["address"]
        if entry.get("root-certificates"):
            self.ca = self.path.parent / Path(entry["root-certificates"]).expanduser()
        elif not entry.get("insecure"):
            self.problem = f"{self.path}: {self.name} has no root-certificates: give it the ca.crt"

    def say(self) -> str:
        """Where it leads."""
        if self.problem:
            raise UserError(self.problem)
        return f"{self.name} in {self.path}: {self.address}"


def load_certificate(path: Path) -> x509.Certificate:
    """A certificate that is valid today."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no certificate: {error}") from None
    now = datetime.now(UTC)
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        span = f"{found.not_valid_before_utc:%Y-%m-%d} to {found.not_valid_after_utc:%Y-%m-%d}"
        raise UserError(f"{path} is valid from {span}, not today: make a new one, check the clock")
    return found


def authority(path: Path) -> str:
    """The certificate authority's certificate."""
    found = load_certificate(path)
    return f"{path}, valid until {found.not_valid_after_utc:%Y-%m-%d}"


def certificate(path: Path, key: Path | None, ca: Path | None) -> str:
    """The SuperLink's certificate: signed by the authority, with its own key."""
    found = load_certificate(path)
    if ca is not None:
        try:
            found.verify_directly_issued_by(load_certificate(ca))
        except (ValueError, TypeError, InvalidSignature):
            raise UserError(f"{path} is not signed by {ca}: nodes would refuse it") from None
    if key is not None:
        secret(key)
        loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
        if loaded.public_key() != found.public_key():
            raise UserError(f"{key} is not the key of {path}")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    shown = ", ".join(str(name.value) for name in names)
    return f"{path} for {shown}, valid until {found.not_valid_after_utc:%Y-%m-%d}"


def secret(path: Path) -> None:
    """Refuse a key that other users can read."""
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    if path.stat().st_mode & 0o077:
        raise UserError(f"{path} can be read by other users: chmod 600 {path}")


def node_key(path: Path) -> str:
    """A node's private key."""
    secret(path)
    try:
        found = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is no OpenSSH key without passphrase: {error}") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is no ECDSA key: ssh-keygen -t ecdsa -b 384")
    return f"{path}, readable by its owner alone; its .pub must be registered"


def reachable(address: str, ca: Path | None) -> str:
    """Whether something answers there, and with TLS whether it is whom the authority says."""
    host, _, port = address.removeprefix("https://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), SECONDS) as plain:
            if ca is None:
                return f"{address} answers, without TLS"
            context = ssl.create_default_context(cafile=ca)
            with context.wrap_socket(plain, server_hostname=host) as tls:
                return f"{address} answers with {tls.version()}, its certificate fits {ca}"
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"{address}: its certificate does not fit {ca}: {error.verify_message}"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{address} does not answer ({error}): is the SuperLink started with --host 0.0.0.0 "
            "and its port open to this machine?"
        ) from None


def data(node_config: str, settings: Config) -> str:
    """A node's images: readable, classes of the run's, of the dataset's size."""
    own = own_data(parse_config_args([node_config]))
    images, spec = own.load(settings), build.spec(settings)
    found, wanted = images.images.shape[1:], (spec.channels, spec.size, spec.size)
    if found != wanted and not settings.data.data_dir:
        raise UserError(f"SuperNode {own.name}: images are {found}, {spec.name}'s {wanted}: resize")
    classes = np.unique(images.labels)
    names = ", ".join(images.class_names[c] for c in classes[:12])
    more = ", …" if len(classes) > 12 else ""
    return f"SuperNode {own.name}: {len(images.labels):,} images {found} of classes {names}{more}"


def server_images(settings: Config) -> str:
    """The server's test images."""
    preflight.check_own(settings)
    return f"{len(build.images(settings, 'test').labels):,} of {settings.data.dataset}"


def memory(needed: int = CLIENT_MB) -> str:
    """Whether a client process fits beside what runs now."""
    table = Path("/proc/meminfo")
    if not table.is_file():
        return "not known on this system"
    rows = dict(line.split(":") for line in table.read_text().splitlines())
    free = int(rows["MemAvailable"].split()[0]) * 1024 // 10**6
    if free < needed:
        raise UserError(f"{free} MB are available, a client takes about {needed}")
    return f"{free:,} MB are available, a client takes about {needed}"


def disk(settings: Config, needed: int = DISK_MB) -> str:
    """Whether there is room where the app writes, and the right to."""
    said = []
    state = Path(settings.output.state_dir) if settings.output.state_dir else default_root()
    for folder in dict.fromkeys((state, default_cache_dir())):
        there = next(p for p in (folder, *folder.parents) if p.exists())
        free = shutil.disk_usage(there).free // 10**6
        if not os.access(there, os.W_OK):
            raise UserError(f"{there} cannot be written: set FEDSYN_STATE_DIR, FEDSYN_CACHE_DIR")
        if free < needed:
            raise UserError(f"{folder}: {free} MB are free, {needed} should be: make room")
        said.append(f"{free:,} MB free for {folder}")
    return ", ".join(said)


def run(settings: Config) -> str:
    """The run's own keys."""
    wanted, labels = settings.federation.num_clients, build.label_list(settings)
    if wanted < 1 or settings.data.partition != "own":
        raise UserError('a run on SuperNodes with own data needs partition = "own", num-clients')
    return f"{settings.federation.strategy} on {wanted} nodes, {len(labels)} classes"
