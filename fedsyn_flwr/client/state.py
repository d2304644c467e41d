"""What a node keeps between rounds: per-client state and the synthetic pool.

Actors serve whichever client comes next, so nothing is kept in Python objects: a client's state
is a safetensors file keyed by run, partition and the round that wrote it, and any actor of the
machine (or the same SuperNode after a restart) finds it.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from fedsyn_flwr.files import write_arrays


def default_root() -> Path:
    """Where state lies unless ``state-dir`` says otherwise."""
    root = os.environ.get("FEDSYN_STATE_DIR")
    return Path(root) if root else Path.home() / ".cache" / "fedsyn-flwr" / "state"


class VersionedStore:
    """Files ``v<round>.safetensors`` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def versions(self) -> list[int]:
        """Stored version numbers, ascending."""
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(r"v(\d+)\.safetensors", p.name) for p in self.folder.iterdir())
        return sorted(int(m.group(1)) for m in found if m)

    def path(self, version: int) -> Path:
        """The file of a version."""
        return self.folder / f"v{version}.safetensors"

    def save(self, version: int, arrays: dict[str, np.ndarray]) -> None:
        """Store a version, over one of the same number."""
        write_arrays(self.path(version), arrays)

    def keep(self, wanted: Collection[int]) -> None:
        """Drop all other versions."""
        for old in set(self.versions()) - set(wanted):
            self.path(old).unlink(missing_ok=True)

    def settle(self, settled: int) -> None:
        """Drop what no repeated round can ask for: all before the newest up to a settled round."""
        for old in [v for v in self.versions() if v <= settled][:-1]:
            self.path(old).unlink(missing_ok=True)

    def load(self, version: int) -> dict[str, np.ndarray] | None:
        """The arrays of exactly this version, None if it is not here."""
        try:
            return dict(load_file(self.path(version)))
        except FileNotFoundError:
            return None

    def mapped(self, version: int) -> dict[str, np.ndarray]:
        """The arrays of a version as maps of its file, not copies: processes share the memory.

        Writing to them changes neither the file nor what others see. A version that is dropped or
        replaced meanwhile stays as it was for those who hold it.
        """
        with safe_open(self.path(version), "pt") as file:
            return {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118

    def newest(self, until: int) -> int:
        """The newest version up to this one, 0 if there is none."""
        return max((v for v in self.versions() if v <= until), default=0)


class NodeState:
    """The store of one run on this node."""

    def __init__(self, root: Path, run: str) -> None:
        self.folder = root / run

    def client(self, partition: int | str) -> VersionedStore:
        """A client's own state, versions are rounds."""
        return VersionedStore(self.folder / f"client-{partition}")

    def pool(self) -> VersionedStore:
        """The broadcast synthetic pool, one copy per machine."""
        return VersionedStore(self.folder / "pool")
