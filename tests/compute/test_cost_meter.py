"""Operations against numbers worked out by hand, and what a run reports of its cost."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Federation
from torch import nn
from torch.nn import functional as F

from fedsyn_flwr.compute import cost_meter
from fedsyn_flwr.models import SplitModel, build_model
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.rng import torch_generator
from fedsyn_flwr.synthesis import inversion

QUICK: dict[str, Any] = {
    "num-server-rounds": 2,
    "limit-train": 300,
    "model-width": 0.25,
    "partition": "iid",
    "synthesis-every": 2,
    "synthesis-per-client": 10,
    "synthesis-steps": 7,
}


def train_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> int:
    with cost_meter.FlopCounter() as counter:
        F.cross_entropy(model(x), y).backward()
    return counter.flops


def test_linear_model_by_hand() -> None:
    """Forward and the weight's gradient: a multiply-add each per sample, input and output."""
    x, y = torch.randn(5, 64), torch.arange(5)
    once = 2 * 5 * 64 * 10
    assert train_step(nn.Linear(64, 10), x, y) == 2 * once
    # a second layer also passes its gradient on
    two = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    assert train_step(two, x, y) == 2 * (2 * 5 * 64 * 20) + 3 * (2 * 5 * 20 * 10)


def test_conv_model_by_hand() -> None:
    """A 3x3 convolution to 4 channels, one to 6 at half the size, and a head."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1)),
        *(nn.Flatten(), nn.Linear(6 * 16, 10)),
    )
    first = 2 * 5 * (8 * 8) * 4 * (1 * 9)
    second = 2 * 5 * (4 * 4) * 6 * (4 * 9)
    head = 2 * 5 * 96 * 10
    flops = train_step(model, torch.randn(5, 1, 8, 8), torch.arange(5))
    assert flops == 2 * first + 3 * second + 3 * head


def test_counting_leaves_the_bits_alone() -> None:
    for name in ("cnn", "cnn-gap", "resnet18"):
        gradients = []
        for counted in (False, True):
            model = build_model(
                name, in_shape=(3, 8, 8), num_classes=4, norm="bn", width=0.25, seed=0
            )
            x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
            x = x.contiguous(memory_format=torch.channels_last)
            y = torch.arange(6) % 4
            train_step(model, x, y) if counted else F.cross_entropy(model(x), y).backward()
            gradients.append([p.grad for p in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_each_kind_of_step_is_counted_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_meter, "_KNOWN", {})
    counters = []
    original = cost_meter.FlopCounter

    def counting() -> cost_meter.FlopCounter:
        counters.append(original())
        return counters[-1]

    monkeypatch.setattr(cost_meter, "FlopCounter", counting)
    a, b = torch.randn(4, 8), torch.randn(8, 3)
    meters = [cost_meter.Meter("training", "key"), cost_meter.Meter("training", "key")]
    for meter in meters:
        for _ in range(5):
            with meter.counted(4):
                a @ b
        with meter.counted(2):
            a[:2] @ b
    assert len(counters) == 2  # shapes
    assert [m.flops for m in meters] == [5 * 2 * 4 * 8 * 3 + 2 * 2 * 8 * 3] * 2
    with cost_meter.Meter("synthesis", "key").counted(4):
        pass
    assert len(counters) == 3  # another phase is another kind


def test_a_failing_step_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_meter, "_KNOWN", {})
    with pytest.raises(RuntimeError), cost_meter.Meter("training").counted(1):
        raise RuntimeError
    assert cost_meter._KNOWN == {}


def test_meter_and_memory() -> None:
    start = time.perf_counter()
    meter = cost_meter.Meter("training")
    time.sleep(0.02)
    metrics = meter.metrics()
    assert 0.02 <= metrics["client_seconds/training"] <= time.perf_counter() - start
    assert metrics["flops/training"] == 0
    # whatever the platform's unit: this process has torch loaded and not a terabyte
    assert 100 < metrics["memory/client_peak_mb"] < 1e6


# ---- in a run


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


def one_sample(model: SplitModel, shape: tuple[int, ...]) -> int:
    return train_step(model.eval(), torch.randn(1, *shape), torch.tensor([0]))


def test_training_is_a_forward_and_backward_of_every_batch(tmp_path: Path) -> None:
    """300 samples over 3 clients, batches of 32, 32, 36: linear in the batch, so 100 samples."""
    f = Federation(tmp_path, 3, **QUICK, strategy="fedavg").run()
    single = one_sample(f.worker.flat.module, f.worker.data.shape)
    for line in lines(f):
        assert line["flops/training"] == 100 * single
        assert "flops/synthesis" not in line
        assert line["client_seconds/training"] > 0
        assert line["memory/server_peak_mb"] >= line["memory/client_peak_mb"] > 100


@pytest.mark.parametrize("joint", [False, True])
def test_mixed_step_costs_two_passes(tmp_path: Path, joint: bool) -> None:
    keys = {"strategy": "hfmds", "hfmds-joint-batch": joint}
    before, after = lines(Federation(tmp_path, 3, **QUICK, **keys).run())
    assert after["flops/training"] == 2 * before["flops/training"]


def test_synthesis_is_its_steps_and_its_targets(tmp_path: Path) -> None:
    """CE only: 7 steps on 10 images, the gradient reaching the images but no weight.

    The last layer's output feeds nothing but the loss, so that is forward and input gradient:
    twice the forward pass.
    """
    keys = {"strategy": "hfmds", "synthesis-loss": "ce"}
    f = Federation(tmp_path, 3, **QUICK, **keys).run()
    with cost_meter.FlopCounter() as counter, torch.no_grad():
        f.worker.flat.module.eval()(torch.randn(1, 1, 8, 8))
    assert lines(f)[1]["flops/synthesis"] == 7 * 10 * 2 * counter.flops


def test_batches_of_the_inversion_cost_the_same() -> None:
    model = build_model("cnn", in_shape=(1, 8, 8), num_classes=4, width=0.25, seed=1)
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6) % 4
    flops = []
    for batch in (0, 4):
        settings = inversion.InversionSettings(3, 0.1, 1.0, 0.5, 0, 0, "l1", "vector", batch=batch)
        meter = cost_meter.Meter("synthesis", "test")
        prototypes = torch.zeros(6, model.feature_dim)
        inversion.invert(model, x, y, prototypes, settings, torch_generator(0, "noise"), meter)
        flops.append(meter.flops)
    assert flops[0] == flops[1] > 0


def test_counting_again_or_not_the_run_has_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for i in range(2):
        if i == 0:
            monkeypatch.setattr(cost_meter, "_KNOWN", {})
        f = Federation(tmp_path / str(i), 3, **QUICK, strategy="hfmds", norm="bn").run()
        digests.append(digest(f.model))
    assert digests[0] == digests[1]


def test_counting_loads_no_triton_and_leaves_it_to_others() -> None:
    """It would come with PyTorch's formulas, in every process that counts."""
    code = (
        "import importlib.util, sys, torch\n"
        "from fedsyn_flwr.compute.cost_meter import FlopCounter\n"
        "with FlopCounter() as counter: torch.ones(2, 3) @ torch.ones(3, 5)\n"
        "print(counter.flops, 'triton' in sys.modules)\n"
        "if importlib.util.find_spec('triton'): import triton.runtime.jit\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("60 False\n", "")
