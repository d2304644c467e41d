"""Early stop and the memory budget of the inversion."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness import Federation
from torch import nn

from fedsyn_flwr.models import build_model
from fedsyn_flwr.synthesis import inversion
from fedsyn_flwr.synthesis.inversion import InversionSettings, Plateau

SETTINGS = InversionSettings(30, 0.1, 1.0, 0.5, 0.01, 0.01, "l1", "vector")


def problem(name: str = "cnn", n: int = 7) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = build_model(name, in_shape=(3, 8, 8), num_classes=4, norm="bn", width=0.25, seed=1)
    x = torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return model, x.contiguous(memory_format=torch.channels_last), torch.arange(n) % 4


def invert(settings: InversionSettings, name: str = "cnn") -> inversion.Inversion:
    """In double precision, where another order of summation cannot grow over the steps."""
    model, x, y = problem(name)
    model, x = model.double(), x.double()
    extract, _ = inversion.split(model.eval(), settings.level)
    prototypes = extract(x).detach().roll(1, 0)
    return inversion.invert(model, x, y, prototypes, settings, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("level", ["vector", "map"])
@pytest.mark.parametrize("name", ["cnn", "cnn-gap", "resnet18"])
def test_the_split_does_not_matter(name: str, level: str) -> None:
    """Early stop included: all images share one plateau, however they are split."""
    settings = replace(SETTINGS, level=level, patience=4, tolerance=0.02)
    whole = invert(settings, name)
    for batch in (1, 3, 7, 100):
        parts = invert(replace(settings, batch=batch), name)
        assert parts.steps == whole.steps
        torch.testing.assert_close(parts.images, whole.images, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(parts.loss, whole.loss, rtol=1e-6, atol=1e-6)


def test_model_never_sees_more_than_the_budget() -> None:
    model, x, y = problem()
    seen = []
    model.trunk.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    prototypes = torch.zeros(7, model.feature_dim)
    settings = replace(SETTINGS, steps=2, batch=3)
    inversion.invert(model, x, y, prototypes, settings, torch.Generator())
    assert seen == [3, 3, 1] * 3  # the targets and two steps


def test_plateau_by_hand() -> None:
    plateau = Plateau(patience=2, tolerance=0.1)
    reached = []
    for total in (10.0, 8.0, 7.5, 7.19, 7.0, 6.6, 1.0):
        plateau.watch(torch.tensor([total / 2, total / 2]))
        reached.append(plateau.reached)
    # 7.5 is not a tenth below 8, 7.19 is just below 7.2, the next two are not below 6.47
    assert reached == [False, False, False, False, False, True, False]
    assert Plateau(2, 0.1).reached is False


def test_patience_ends_a_finished_inversion_early() -> None:
    settings = replace(SETTINGS, steps=2000, patience=10, tolerance=0.01)
    early = invert(settings)
    assert 10 < early.steps < 2000
    again = invert(replace(SETTINGS, steps=early.steps))
    assert torch.equal(early.images, again.images)  # stopped, otherwise the same


def test_without_patience_every_step_is_done_and_no_loss_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading a number waits for the device."""

    def forbidden(*_: object) -> float:
        raise AssertionError("a tensor was read")

    for name in ("item", "__float__", "__bool__", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    model, x, y = problem()
    # Adam itself reads its step counter on the CPU, not on the device
    monkeypatch.setattr(inversion.Adam, "step", lambda self, gradient: None)
    prototypes = torch.zeros(7, model.feature_dim)
    done = inversion.invert(model, x, y, prototypes, SETTINGS, torch.Generator())
    assert done.steps == 30


def test_steps_are_reported(tmp_path: Path) -> None:
    keys = {
        "strategy": "hfmds",
        "num-server-rounds": 1,
        "synthesis-every": 1,
        "synthesis-per-client": 8,
        "synthesis-steps": 500,
        "synthesis-patience": 2,
        "synthesis-tolerance": 0.2,
        "limit-train": 100,
        "model-width": 0.25,
    }
    f = Federation(tmp_path, 2, **keys).run()
    assert 2 < f.strategy.record.metrics["synthesis/steps"] < 500
    assert f.strategy.record.metrics["synthesis/loss"] > 0
