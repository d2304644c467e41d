"""Parts that others bring: by entry point of an installed package, or as ``module:ATTRIBUTE``.

A module that is not installed is looked for last of all in ``FEDSYN_PLUGIN_PATH``, else in the
working directory, so that no file there hides an installed package.
"""

import difflib
import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from fedsyn_flwr.errors import UserError

PATH = "FEDSYN_PLUGIN_PATH"


def installed(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of a group, such as ``fedsyn.methods``, by name, in that order."""
    return {point.name: point for point in sorted(metadata.entry_points(group=group))}


def origin(point: metadata.EntryPoint) -> str:
    """The package that brings an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` for a name that resembles a known one, else ''."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def load(group: str, name: str, kind: type[Any]) -> Any:
    """What an entry point's name or a ``module:ATTRIBUTE`` stands for; None if it is neither.

    Raises
    ------
    UserError
        If it cannot be imported, or is no ``kind``.
    """
    if ":" in name:
        path = name
    elif point := installed(group).get(name):
        path = point.value
    else:
        return None
    found = attribute(path)
    if not isinstance(found, kind):
        raise UserError(f"{path} is a {type(found).__name__}: it must be a {kind.__name__}")
    return found


@cache
def attribute(path: str) -> Any:
    """Import ``module:ATTRIBUTE``.

    Raises
    ------
    UserError
        Whatever the module raises, as one line.
    """
    module, _, name = path.partition(":")
    if not module or not name.isidentifier():
        raise UserError(f"{path!r} must be module:ATTRIBUTE, e.g. my_package.mymethod:METHOD")
    _look_beside()
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # it is someone else's code: anything may come
        said = " ".join(str(error).split())
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {said}") from None


def share_path() -> None:
    """Let the processes of a run find what lies beside where this one was called."""
    os.environ.setdefault(PATH, str(Path.cwd()))


def _look_beside() -> None:
    """Behind everything else on the path: the folders of the caller's own modules."""
    folders = os.environ.get(PATH, "") or str(Path.cwd())
    sys.path += [part for part in folders.split(os.pathsep) if part and part not in sys.path]
