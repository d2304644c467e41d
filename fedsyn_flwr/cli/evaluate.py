"""``fedsyn evaluate``: how well a finished run's model does."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer

from fedsyn_flwr.cli.results import AsJson, RunFolder
from fedsyn_flwr.errors import UserError


def evaluate(
    run: RunFolder,
    data_dir: Annotated[
        str, typer.Option(metavar="FOLDER", help="Other images than the run's, in the same layout.")
    ] = "",
    split: Annotated[str, typer.Option(help="test or train.")] = "test",
    output: Annotated[
        Path | None, typer.Option("--output", "--out", help="Folder of the files. [default: RUN]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's final model: accuracy, macro F1, calibration, class by class.

    RUN is the folder of a run. Saves confusion-SPLIT.csv and confusion-SPLIT.png.
    """
    import torch

    from fedsyn_flwr.files import write_whole
    from fedsyn_flwr.results import evaluate as measure
    from fedsyn_flwr.results.finished import Split, load_run

    if split not in ("test", "train"):
        raise UserError(f"--split {split!r}: must be test or train")
    finished = load_run(run)
    model = finished.model  # what is wrong with the run is said before what is with the images
    images = finished.images(cast(Split, split), data_dir)
    assert not model.training
    found = measure.evaluate(
        finished.logits(images.images), torch.tensor(images.labels), images.class_names
    )
    folder = (output or finished.folder).expanduser().absolute()
    files = [folder / f"confusion-{split}.{kind}" for kind in ("csv", "png")]
    write_whole(files[0], measure.confusion_csv(found))
    measure.draw_confusion(found, files[1])
    if as_json:
        print(json.dumps({**asdict(found), "files": [str(file) for file in files]}, indent=2))
        return
    print(f"{found.images:,} {split} images: accuracy {found.accuracy:.4f}, ", end="")
    print(f"macro F1 {found.macro_f1:.4f}, ECE {found.ece:.4f}")
    width = max(5, *map(len, found.names))
    print(f"{'class':<{width}}  images  precision  recall      f1")
    for row in found.classes:
        print(f"{row['class']:<{width}}  {row['images']:>6}  {row['precision']:>9.4f}", end="")
        print(f"  {row['recall']:.4f}  {row['f1']:.4f}")
    print("\n".join(map(str, files)))
