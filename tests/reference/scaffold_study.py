"""Where SCAFFOLD trains and where not: `scaffold` with its surroundings changed one at a time.

``python -m tests.reference.scaffold_study --data-dir DIR rate=0.1 rate=0.1,steps=equal`` prints a
line per run. docs/scaffold.md has the results.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from fedsyn_flwr import build, config
from fedsyn_flwr.models import SplitModel

from .setting import Setting, State, cross_entropy

CONF = Path(__file__).resolve().parents[2] / "conf" / "mnist-small-fedavg.toml"
USUAL: dict[str, Any] = {
    "method": "scaffold",  # or fedavg
    "rate": 0.1,
    "momentum": 0.0,
    "weighting": "examples",  # of the models: examples | uniform
    "control": "plain",  # c: plain | weighted (as models) | travelled (and by steps) | fresh
    "steps": "own",  # of a client: own (its epochs) | equal (as many for each, the mean)
    "decay": "in",  # weight decay within the control: in | out
    "lambda": 1e-5,  # that weight decay
    "alpha": 0.1,  # of the Dirichlet distribution
    "epochs": 2,
    "eta": 1.0,  # η_g
    "norm": "gn",
    "model": "cnn-gap",
    "images": 4000,
    "pixels": 14,  # 28 as they are, 14 after a 2x2 mean
    "rounds": 15,
    "seed": 0,
}
Options = dict[str, Any]


class Study(Setting):
    """The conf's federation with a run's options."""

    def __init__(self, data_dir: str, o: Options) -> None:
        super().__init__(
            {
                **config.read_conf(CONF),
                "data-dir": data_dir,
                "limit-train": o["images"],
                "limit-test": 2000,
                "clip-norm": 100.0,
                "learning-rate": o["rate"],
                "momentum": o["momentum"],
                "weighting": o["weighting"],
                "weight-decay": o["lambda"],
                "dirichlet-alpha": o["alpha"],
                "local-epochs": o["epochs"],
                "num-server-rounds": o["rounds"],
                "scaffold-server-lr": o["eta"],
                "norm": o["norm"],
                "model": o["model"],
                "seed": o["seed"],
            }
        )
        self.o = o
        self.test_y = torch.tensor(build.images(self.config, "test").labels).long()
        if o["pixels"] == 14:
            self.x, self.test_x = F.avg_pool2d(self.x, 2), F.avg_pool2d(self.test_x, 2)
        each = [sum(1 for _ in super(Study, self).batches(1, k)) for k in self.clients]
        self.equal = round(sum(each) / len(each))

    def batches(self, t: int, k: int) -> Iterator[torch.Tensor]:
        """With equal steps: epochs one after the other until there are as many."""
        if self.o["steps"] == "own":
            yield from super().batches(t, k)
            return
        order, taken = self.stream(t, k, "batches"), 0
        while taken < self.equal:
            rows = self.parts[k][torch.randperm(len(self.parts[k]), generator=order)]
            for piece in rows.split(self["batch-size"])[: self.equal - taken]:
                taken += 1
                yield piece

    def accuracy(self, state: State) -> float:
        """Of a model on the test images, in %."""
        with torch.no_grad():
            found = self.model(state).eval()(self.test_x).argmax(dim=1)
        return 100 * float((found == self.test_y).float().mean())

    def gradient(self, state: State, k: int) -> State:
        """∇f_k at a model: option I's control."""
        model = self.model(state).train()
        cross_entropy(model, self.x[self.parts[k]], self.y[self.parts[k]]).objective.backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def mean_control(s: Study, own: list[State], steps: list[int]) -> State:
    """c: the paper's plain mean (with option I, too), or a mean weighted like what c moves."""
    weights = {
        "weighted": s.shares,
        "travelled": [p * n for p, n in zip(s.shares, steps, strict=True)],
    }.get(s.o["control"], [1.0] * len(own))
    shares = [weight / sum(weights) for weight in weights]
    return {n: sum(p * c_i[n] for p, c_i in zip(shares, own, strict=True)) for n in own[0]}


def run(s: Study) -> Iterator[float]:
    """SCAFFOLD's rounds (FedAvg's: with controls that stay 0), each one's accuracy."""
    x, o = s.initial(), s.o
    names = [name for name, _ in s.model().named_parameters()]
    zero = {name: torch.zeros_like(x[name]) for name in names}
    c, own = zero, [zero for _ in s.clients]
    for t in s.rounds:
        trained, fresh, steps = [], [], []
        for i in s.clients:

            def correct(model: SplitModel, c: State = c, c_i: State = own[i]) -> None:
                for name, p in model.named_parameters():
                    assert p.grad is not None
                    p.grad += c[name] - c_i[name]

            found = s.local(x, t, i, cross_entropy, correct)
            y = found.model.state_dict()
            trained.append(y)
            steps.append(found.steps)
            travel = found.steps * o["rate"] / (1 - o["momentum"])
            new = {n: own[i][n] - c[n] + (x[n] - y[n]) / travel for n in names}
            if o["decay"] == "out":
                new = {n: new[n] - o["lambda"] * (x[n] + y[n]) / 2 for n in names}
            fresh.append(s.gradient(x, i) if o["control"] == "fresh" else new)
        mean = s.average(trained)
        x = {**mean, **{n: x[n] + o["eta"] * (mean[n] - x[n]) for n in names}}
        if o["method"] == "scaffold":
            own = fresh
            c = mean_control(s, own, steps)
        yield s.accuracy(x)


def options(text: str) -> Options:
    """``rate=0.1,steps=equal`` over the usual ones."""
    given = dict(part.split("=") for part in text.split(",") if part)
    assert given.keys() <= USUAL.keys(), f"known are {', '.join(USUAL)}"
    return {**USUAL, **{key: type(USUAL[key])(value) for key, value in given.items()}}


def main() -> None:
    """A line per run: accuracy after some rounds, the mean of the last five, the best, seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("runs", nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for text in arguments.runs:
        start = time.process_time()
        found = list(run(Study(arguments.data_dir, options(text))))
        some = " ".join(f"{a:.0f}" for a in found[:: max(1, len(found) // 10)])
        last = sum(found[-5:]) / len(found[-5:])
        used = time.process_time() - start
        print(f"{text} | {some} | {last:.1f} | {max(found):.1f} | {used:.0f} s", flush=True)


if __name__ == "__main__":
    main()
