"""``fedsyn export``: a finished run's model for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from fedsyn_flwr.cli.results import RunFolder


def export(
    run: RunFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
) -> None:
    """Write a run's model as .onnx, .pt2 (torch.export) or .safetensors, and check it.

    RUN is the folder of a run. FILE.json, written beside it, says what the model takes. The file
    is kept only if it answers as the original does on 256 test images.
    """
    from fedsyn_flwr.results.export import export as write
    from fedsyn_flwr.results.finished import load_run

    made = write(load_run(run), file.expanduser().absolute())
    print(f"same class on {made.images} images, logits differ by at most {made.difference:.3g}")
    print(made.path)
    print(made.description)
