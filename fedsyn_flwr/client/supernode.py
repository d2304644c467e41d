"""A SuperNode with data of its own: where they lie, and what the federation calls the node."""

import re
from dataclasses import dataclass
from pathlib import Path

from fedsyn_flwr import build
from fedsyn_flwr.config import Config, RunConfig
from fedsyn_flwr.data import ImageSet
from fedsyn_flwr.data.own import load_own
from fedsyn_flwr.errors import UserError


@dataclass(frozen=True)
class OwnData:
    """A node's folder, absolute, and its name, which the server sorts the nodes by."""

    path: Path
    name: str

    @property
    def has_test(self) -> bool:
        """Whether there is a test split beside the training images."""
        return (self.path / "test").is_dir() and (self.path / "train").is_dir()

    def load_test(self, settings: Config) -> ImageSet | None:
        """The node's test split, ``test`` beside ``train``; None without one.

        Raises
        ------
        UserError
            As `load`.
        """
        return self._load(settings, self.path / "test") if self.has_test else None

    def load(self, settings: Config) -> ImageSet:
        """The node's training images, with the run's class indices.

        Raises
        ------
        UserError
            Naming the node and what is wrong with its data.
        """
        return self._load(settings, self.path, settings.data.limit_train)

    def _load(self, settings: Config, path: Path, limit: int = 0) -> ImageSet:
        spec, labels = build.spec(settings), build.label_list(settings)
        try:
            return load_own(spec, path, labels, limit=limit)
        except UserError as error:
            raise UserError(f"SuperNode {self.name}: {error}") from None


def own_data(node_config: RunConfig) -> OwnData:
    """``data-path`` and ``node-name`` of a SuperNode's ``--node-config``.

    The name is the folder's by default: two nodes must not have the same.

    Raises
    ------
    UserError
        If there is no path, it is relative, or the name cannot be a file's.
    """
    text = str(node_config.get("data-path", ""))
    if not Path(text).is_absolute():
        raise UserError(
            f"data-path = {text!r}: start this node's SuperNode with its folder, as an absolute "
            "path: --node-config \"data-path='/data/site-a'\""
        )
    name = str(node_config.get("node-name", Path(text).name))
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"node-name = {name!r}: letters, digits, '_', '-' and '.' are allowed")
    return OwnData(Path(text), name)
