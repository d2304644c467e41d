"""``fedsyn images``: a finished run's synthetic images as files."""

from pathlib import Path
from typing import Annotated

import typer

from fedsyn_flwr.cli.results import RunFolder


def images(
    run: RunFolder,
    output: Annotated[Path, typer.Option("--output", "--out", help="A new folder.")],
) -> None:
    """Write a run's synthetic images as PNG files, a folder per class.

    RUN is the folder of a run of a method that shares images.
    """
    from fedsyn_flwr.results.finished import load_run
    from fedsyn_flwr.results.pool import write_pool

    folder = output.expanduser().absolute()
    print(f"{write_pool(load_run(run), folder)} images in {folder}")
