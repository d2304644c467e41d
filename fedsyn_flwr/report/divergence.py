"""How far final models are from centrally trained ones, layer by layer (MrTF's Fig. 3)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsyn_flwr import assembly
from fedsyn_flwr.central import train_centrally
from fedsyn_flwr.config import Config
from fedsyn_flwr.evaluation import Evaluator
from fedsyn_flwr.report.aggregate import Stat, stat
from fedsyn_flwr.report.canvas import COLOURS, MARKERS, canvas, save
from fedsyn_flwr.report.curves import Run, labels, title
from fedsyn_flwr.report.samples import Source
from fedsyn_flwr.report.sweep import caption
from fedsyn_flwr.worker import resident

WHOLE = "whole model"
Parameters = Mapping[str, Tensor]


def draw_divergence(groups: Sequence[Sequence[Run]], stem: Path) -> list[Path]:
    """Write the picture; returns the files' paths.

    Every run is compared with the model that `train_centrally` makes of its configuration; runs
    that differ in nothing that matters there share one.
    """
    reference = Reference()
    found = [[divergences(Source(run), reference) for run in group] for group in groups]
    layers = list(dict.fromkeys(name for group in found for each in group for name in each))
    layers = [*(name for name in layers if name != WHOLE), WHOLE]
    figure = canvas(max(6.4, 2.0 + 0.45 * len(layers)), 4.8)
    axes = figure.add_subplot()
    for i, (label, group) in enumerate(zip(labels(groups), found, strict=True)):
        stats = {name: stat(each.get(name) for each in group) for name in layers}
        _line(axes, [stats[name] for name in layers], label, i)
    axes.set_xticks(range(len(layers)), layers, rotation=30, ha="right")
    axes.axvline(len(layers) - 1.5, color="#999999", linewidth=0.8)
    axes.set(
        ylabel="distance to the central model / its norm", xlabel="layer, from input to output"
    )
    axes.set_ylim(bottom=0)
    axes.set_title(title(groups), fontsize="medium")
    axes.grid(alpha=0.3)
    look = {"fontsize": "small", "title_fontsize": "small", "alignment": "left"}
    figure.legend(title=caption({len(g) for g in groups}), loc="outside lower center", **look)
    return save(figure, stem)


class Reference:
    """Centrally trained models, each made once: by what decides their weights."""

    def __init__(self) -> None:
        self.made: dict[Any, Parameters] = {}

    def of(self, source: Source) -> Parameters:
        """The parameters by name that belong to a run."""
        config = source.config
        federation = replace(config.federation, strategy="")
        key = (config.data, config.model, config.train, federation)
        if key not in self.made:
            self.made[key] = self.train(config, source.folder.name)
        return self.made[key]

    def train(self, config: Config, name: str) -> Parameters:
        """Make one, and say so: it takes as many samples as the run did."""
        rounds = config.federation.num_server_rounds
        print(f"training centrally, as {name}: {rounds} rounds", file=sys.stderr)
        flat = train_centrally(config)
        test = resident(config, assembly.images(config, "test"), assembly.device(config))
        _, accuracy = Evaluator(test, config.output.eval_batch_size)(flat.module)
        print(f"test accuracy of the central model: {accuracy:.4f}", file=sys.stderr)
        return parameters(flat.module)


def parameters(module: torch.nn.Module) -> Parameters:
    """Copies of the trainable parameters by name."""
    return {name: p.detach().cpu().clone() for name, p in module.named_parameters()}


def divergences(source: Source, reference: Reference) -> dict[str, float]:
    """A run's final model against its central one, as `relative_distances`."""
    return relative_distances(parameters(source.model), reference.of(source))


def relative_distances(model: Parameters, central: Parameters) -> dict[str, float]:
    """‖w - w_c‖ / ‖w_c‖ of each layer, weight and bias together, and of all parameters.

    Layers are those with a weight of two dimensions or more, convolutions and linear maps, in
    order; ``whole model`` includes the normalisation's scales and shifts.
    """
    names = [name.removesuffix(".weight") for name, w in central.items() if w.dim() > 1]
    layers = {name: [p for p in central if p.rpartition(".")[0] == name] for name in names}
    return {name: _relative(model, central, p) for name, p in {**layers, WHOLE: [*central]}.items()}


def _relative(model: Parameters, central: Parameters, names: Sequence[str]) -> float:
    w, c = (torch.cat([each[n].flatten().double() for n in names]) for each in (model, central))
    return float((w - c).norm() / c.norm())


def _line(axes: Any, stats: Sequence[Stat | None], label: str, i: int) -> None:
    """Layers are connected, the whole model is a point of its own."""
    look = {
        "color": COLOURS[i % len(COLOURS)],
        "marker": ("o", *MARKERS)[i % (len(MARKERS) + 1)],
        "capsize": 3,
    }
    held = [(x, s.mean, s.std or 0.0) for x, s in enumerate(stats) if s]
    last = len(stats) - 1
    for part, name in (([h for h in held if h[0] < last], label), (held[-1:], None)):
        xs, means, stds = zip(*part, strict=True)
        axes.errorbar(xs, means, stds, label=name, **look)
