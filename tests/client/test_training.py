"""What a process of a run loads before its first step: seconds, in the server and every actor."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedsyn_flwr.client.training import SGD

TRAIN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from harness import Federation
Federation(Path(sys.argv[1]), 2, strategy="fedavg", **{{"num-server-rounds": 1}}).run()
slow = {{"torch._dynamo", "sympy", "datasets", "flwr_datasets", "pandas", "matplotlib", "sklearn"}}
print("loaded", sorted(slow & set(sys.modules)))
"""


def test_no_slow_package_is_loaded_to_train(tmp_path):
    """The first time the partition is drawn, by flwr-datasets, and kept."""
    tests = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(tests.parent)}
    for folder in ("first", "second"):
        command = [sys.executable, "-c", TRAIN.format(tests=str(tests)), str(tmp_path / folder)]
        run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1:] == ["loaded []"], run.stderr


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-5])
def test_sgd_is_pytorchs_to_the_bit(momentum, weight_decay):
    g = torch.Generator().manual_seed(0)
    start = torch.randn(1001, generator=g)
    ours, theirs = (
        [torch.nn.Parameter(part.clone()) for part in start.split(400)] for _ in range(2)
    )
    constants = {"momentum": momentum, "weight_decay": weight_decay}
    mine = SGD(ours, SimpleNamespace(learning_rate=0.05, **constants))
    original = torch.optim.SGD(theirs, lr=0.05, **constants)
    for _ in range(10):
        gradient = torch.randn(1001, generator=g)
        given = [part.clone() for part in gradient.split(400)]
        for weight, part in zip(theirs, gradient.split(400), strict=True):
            weight.grad = part.clone()
        mine.step(given)
        original.step()
        assert torch.equal(torch.cat(given), gradient)
    assert torch.equal(torch.cat(ours), torch.cat(theirs))
