"""A run's model for other programs, checked against the original before it is kept."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsyn_flwr import build
from fedsyn_flwr.data import normalise
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.files import write_whole
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.results.finished import Finished

CHECKED = 256
"""Images on which an exported model must answer as the original."""


@dataclass(frozen=True)
class Exported:
    """What was written: ``difference`` is the largest of any logit, over so many ``images``."""

    path: Path
    description: Path
    images: int
    difference: float


class FromPixels(nn.Module):
    """A model with its normalisation: pixels, float32 (N, C, H, W) in [0, 255] → logits (N, K)."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: SplitModel, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.model((pixels / 255 - self.mean) / self.std)
        return logits


def export(run: Finished, path: Path) -> Exported:
    """Write a run's model and a JSON file beside it that says what the model takes.

    Parameters
    ----------
    run : Finished
        With its model, and with test images at hand to check on.
    path : Path
        Its ending says the format: ``.onnx``, ``.pt2`` or ``.safetensors``.

    Raises
    ------
    UserError
        If the ending is another, a package is missing, or the written file answers otherwise than
        the original; then nothing is left behind.
    """
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: the name must end in {', '.join(FORMATS)}")
    images = np.array(run.images("test").images[:CHECKED])
    wanted = run.logits(images)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{path.name}")
    try:
        found = FORMATS[path.suffix](run, part, images)
        difference = _checked(wanted, found, path)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    description = path.with_name(f"{path.name}.json")
    write_whole(description, json.dumps(describe(run, path.suffix), indent=2) + "\n")
    return Exported(path, description, len(images), difference)


def describe(run: Finished, suffix: str) -> dict[str, Any]:
    """What the model takes and gives, for whoever feeds it."""
    spec, inside = build.spec(run.config), suffix != ".safetensors"
    scale = "[0, 255]" if inside else "[0, 1], then (x - mean) / std"
    return {
        "input": f"float32 (N, C, H, W), pixels in {scale}",
        "shape": list(run.shape),
        "colours": "grey" if run.shape[0] == 1 else "RGB",
        "resize": "bilinear, antialiased, to that height and width; not part of the file",
        "normalisation_included": inside,
        "mean": list(spec.mean),
        "std": list(spec.std),
        "output": "logits (N, K): softmax gives probabilities",
        "classes": run.class_names,
        "model": run.config.model.model,
        "norm": run.config.model.norm,
    }


def _checked(wanted: Tensor, found: Tensor, path: Path) -> float:
    """The largest difference of a logit."""
    difference = float((wanted - found).abs().max())
    other = int((wanted.argmax(dim=1) != found.argmax(dim=1)).sum())
    if other:
        raise UserError(
            f"{path} is not written: it names another class than the original for {other} of "
            f"{len(wanted)} images (logits differ by up to {difference:.3g})"
        )
    return difference


def _whole(run: Finished) -> FromPixels:
    spec = build.spec(run.config)
    return FromPixels(run.model, spec.mean, spec.std).eval()


def _onnx(run: Finished, path: Path, images: NDArray[np.uint8]) -> Tensor:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if not find_spec(name)]
    if missing:
        raise UserError(f"{', '.join(missing)} missing: pip install 'fedsyn-flwr[export]'")
    import onnxruntime

    torch.onnx.export(
        _whole(run),
        (torch.zeros(2, *run.shape),),
        path,
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.tensor(session.run(None, {"pixels": images.astype(np.float32)})[0])


@torch.no_grad()
def _pt2(run: Finished, path: Path, images: NDArray[np.uint8]) -> Tensor:
    example = (torch.zeros(2, *run.shape),)
    program = torch.export.export(
        _whole(run), example, dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, path)
    found: Tensor = torch.export.load(path).module()(torch.tensor(images).float())
    return found


@torch.no_grad()
def _safetensors(run: Finished, path: Path, images: NDArray[np.uint8]) -> Tensor:
    from safetensors.torch import load_file, save_file

    save_file({k: v.contiguous() for k, v in run.model.state_dict().items()}, path)
    model, spec = build.network(run.config, run.shape), build.spec(run.config)
    model.load_state_dict(load_file(path))
    found: Tensor = model.eval()(normalise(torch.tensor(images), spec.mean, spec.std))
    return found


FORMATS: dict[str, Callable[[Finished, Path, NDArray[np.uint8]], Tensor]] = {
    ".onnx": _onnx,
    ".pt2": _pt2,
    ".safetensors": _safetensors,
}
