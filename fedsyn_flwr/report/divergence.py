"""How far final models are from centrally trained ones, layer by layer (MrTF's Fig. 3)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsyn_flwr import build
from fedsyn_flwr.build import resident
from fedsyn_flwr.config import Config
from fedsyn_flwr.report.aggregate import Stat, stat
from fedsyn_flwr.report.canvas import COLOURS, MARKERS, canvas, save
from fedsyn_flwr.report.centralized import check, train_centrally
from fedsyn_flwr.report.curves import Run, labels, title
from fedsyn_flwr.report.samples import Source
from fedsyn_flwr.report.sweep import caption
from fedsyn_flwr.server.evaluation import Evaluator

WHOLE = "whole model"
MOST_UPRIGHT = 8  # more layers have their names turned
Parameters = Mapping[str, Tensor]


def draw_divergence(groups: Sequence[Sequence[Run]], stem: Path) -> list[Path]:
    """Write the picture; returns the files' paths.

    Every run is compared with the model that `train_centrally` makes of its configuration in as
    many rounds as it got to; runs that differ in nothing that matters there share one.
    """
    reference = Reference()
    models = [[Final.of(run) for run in group] for group in groups]  # mistakes first
    found = [[relative_distances(m.model, reference.of(m)) for m in group] for group in models]
    layers = list(dict.fromkeys(name for group in found for each in group for name in each))
    layers = [*(name for name in layers if name != WHOLE), WHOLE]
    figure = canvas(max(6.4, 2.0 + 0.45 * len(layers)), 4.8)
    axes = figure.add_subplot()
    for i, (label, group) in enumerate(zip(labels(groups), found, strict=True)):
        stats = {name: stat(each.get(name) for each in group) for name in layers}
        _line(axes, [stats[name] for name in layers], label, i)
    axes.set_xticks(range(len(layers)), layers)
    if len(layers) > MOST_UPRIGHT:
        axes.tick_params(axis="x", rotation=90)
    axes.axvline(len(layers) - 1.5, color="#999999", linewidth=0.8)
    axes.set(
        ylabel="distance to the central model / its norm", xlabel="layer, from input to output"
    )
    axes.set_ylim(bottom=0)
    axes.set_title(title(groups), fontsize="medium")
    axes.grid(alpha=0.3)
    look = {"fontsize": "small", "title_fontsize": "small", "alignment": "left", "ncols": 2}
    figure.legend(title=caption({len(g) for g in groups}), loc="outside lower center", **look)
    return save(figure, stem)


@dataclass(frozen=True)
class Final:
    """A run's name, its configuration with the rounds it got to, and its final parameters."""

    name: str
    config: Config
    model: Parameters

    @classmethod
    def of(cls, run: Run) -> "Final":
        """Read it; UserError where a file is missing or the clients' data are elsewhere."""
        source = Source(run)
        check(source.config)
        federation = replace(source.config.federation, num_server_rounds=run.rows[-1]["round"])
        config = replace(source.config, federation=federation)
        return cls(run.folder.name, config, parameters(source.model))


class Reference:
    """Centrally trained models, each made once: by what decides their weights."""

    def __init__(self) -> None:
        self.made: dict[Any, Parameters] = {}

    def of(self, final: Final) -> Parameters:
        """The parameters by name that a run's are compared with."""
        config = final.config
        federation = replace(config.federation, strategy="")
        key = (config.data, config.model, config.train, federation)
        if key not in self.made:
            self.made[key] = self.train(config, final.name)
        return self.made[key]

    def train(self, config: Config, name: str) -> Parameters:
        """Make one, and say so: it takes as many samples as the run did."""
        rounds = config.federation.num_server_rounds
        print(f"training centrally, as {name}: {rounds} rounds", file=sys.stderr)
        flat = train_centrally(config)
        test = resident(config, build.images(config, "test"), build.device(config))
        _, accuracy = Evaluator(test, config.output.eval_batch_size)(flat.module)
        print(f"test accuracy of the central model: {accuracy:.4f}", file=sys.stderr)
        return parameters(flat.module)


def parameters(module: torch.nn.Module) -> Parameters:
    """Copies of the trainable parameters by name."""
    return {name: p.detach().cpu().clone() for name, p in module.named_parameters()}


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
    held = [(x, s) for x, s in enumerate(stats) if s]
    for part, name in ((held[:-1], label), (held[-1:], None)):
        means = [s.mean for _, s in part]
        stds = [s.std for _, s in part if s.std is not None]  # of one seed there is none
        axes.errorbar([x for x, _ in part], means, stds or None, label=name, **look)
