"""``fedsyn predict``: what a finished run's model sees in image files."""

import json
from typing import Annotated

import typer

from fedsyn_flwr.cli.results import AsJson, RunFolder


def predict(
    run: RunFolder,
    images: Annotated[list[str], typer.Argument(metavar="IMAGES...", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Name the class of image files, and its probability.

    RUN is the folder of a run. IMAGES of another size than the run's are resized.
    """
    from fedsyn_flwr.results.finished import load_run, read_pictures

    finished = load_run(run)
    probabilities = finished.logits(read_pictures(finished, images)).softmax(dim=1)
    best, which = (column.tolist() for column in probabilities.max(dim=1))
    rows = [
        {"file": file, "class": finished.class_names[c], "probability": p}
        for file, c, p in zip(images, which, best, strict=True)
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(f"{row['file']}  {row['class']}  {row['probability']:.4f}")
