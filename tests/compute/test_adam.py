"""Our Adam against PyTorch's, and what it does not load."""

import subprocess
import sys

import pytest
import torch

from fedsyn_flwr.compute.adam import Adam


@pytest.mark.parametrize("beta1", [0.9, 0.5])
def test_the_same_bits_as_pytorchs(beta1: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, 8, 8, generator=generator)
    x, reference = start.clone(), start.clone().requires_grad_()
    ours = Adam(x, 0.1, beta1)
    theirs = torch.optim.Adam([reference], lr=0.1, betas=(beta1, 0.999))
    for _ in range(5):
        gradient = torch.randn(start.shape, generator=generator)
        ours.step(gradient)
        reference.grad = gradient
        theirs.step()
    assert torch.equal(x, reference)


def test_a_synthesis_does_not_load_pytorchs_compiler() -> None:
    code = """
import sys
import torch
from fedsyn_flwr.models import build_model
from fedsyn_flwr.synthesis.inversion import InversionSettings, invert
model = build_model("cnn", in_shape=(1, 8, 8), num_classes=2, norm="gn", width=0.25, seed=0)
settings = InversionSettings(2, 0.1, 1.0, 0.5, 0.0, 0.0, "l1", "vector")
x, y = torch.zeros(2, 1, 8, 8), torch.tensor([0, 1])
invert(model, x, y, torch.zeros(2, model.feature_dim), settings, torch.Generator())
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
