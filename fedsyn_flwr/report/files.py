"""Writing so that a reader, or a kill, never meets half a file."""

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file in one step; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(part, path)
