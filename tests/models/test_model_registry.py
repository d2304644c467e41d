"""Building by name: seeds, generators, wrong input."""

import pytest
import torch

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models import MODELS, build_model

DIGITS = {"in_shape": (1, 16, 16), "num_classes": 10, "norm": "bn", "width": 0.25}


def _same(a, b):
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(ka == kb and torch.equal(va, vb) for (ka, va), (kb, vb) in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_every_bit(name):
    first = build_model(name, seed=3, **DIGITS)
    torch.manual_seed(99)

    assert _same(first, build_model(name, seed=3, **DIGITS))
    assert not _same(first, build_model(name, seed=4, **DIGITS))


def test_torchs_own_generator_is_left_alone():
    state = torch.get_rng_state()
    seed = torch.initial_seed()
    build_model("cnn", seed=5, **DIGITS)

    assert torch.equal(torch.get_rng_state(), state)
    assert torch.initial_seed() == seed


def test_the_model_is_made_on_the_cpu_whatever_the_default_device():
    with torch.device("meta"):
        model = build_model("cnn", seed=0, **DIGITS)

    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_specs_carry_their_name_and_one_line():
    for name, spec in MODELS.items():
        assert spec.name == name
        assert spec.summary
        assert "\n" not in spec.summary


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("vgg9", {}, ["'vgg9'", "mlp, cnn, cnn-gap, lenet, vgg8, resnet18"]),
        ("vgg8", {"in_shape": (1, 8, 8)}, ["16x16", "8x8", "mlp, cnn, cnn-gap, lenet, resnet18"]),
        ("vgg8", {"in_shape": (1, 32, 15)}, ["16x16", "32x15"]),
        ("vgg9", {"in_shape": (1, 8, 8)}, ["'vgg9'", "from: mlp, cnn, cnn-gap, lenet, resnet18"]),
        ("cnn", {"in_shape": (0, 8, 8)}, ["(0, 8, 8)", "start at 1"]),
        ("cnn", {"norm": "layer"}, ["'layer'", "bn, gn, none"]),
        ("cnn", {"width": 0.0}, ["model-width = 0.0", "above 0"]),
        ("cnn", {"width": float("nan")}, ["model-width = nan", "finite"]),
        ("cnn", {"num_classes": 0}, ["0 classes", "1 or more"]),
    ],
)
def test_a_wrong_value_is_told_in_one_line(name, change, words):
    with pytest.raises(UserError) as caught:
        build_model(name, seed=0, **{**DIGITS, **change})

    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []
