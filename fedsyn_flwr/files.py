"""Files that are there whole or not at all."""

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

ANSI = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal codes for colours, which have no place in a file."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file in one step; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(part, path)


def write_arrays(path: Path, arrays: "Mapping[str, np.ndarray]") -> None:
    """A safetensors file that is there whole or not at all."""
    import numpy as np  # here: who writes text has no need of them
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, part)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
