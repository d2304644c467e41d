"""Copies, bfloat16 and the memory bound, as far as they can be seen without a GPU."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from passes import cnn, distilled, inverted, trained
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr import build, config, losses
from fedsyn_flwr.compute.cuda_graphs import plainly
from fedsyn_flwr.compute.device import (
    bound_memory,
    gpu_share,
    has_bfloat16,
    precision,
    to_device,
    to_host,
)
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models.flat_model import FlatModel, digest

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

# ---- copies


def test_on_the_cpu_nothing_is_copied() -> None:
    x = torch.arange(3.0)
    assert to_device(x, CPU) is x
    (array,) = to_host([x])
    array[0] = 7
    assert x[0] == 7


class FakeTensor:
    """Writes down how it is copied."""

    def __init__(self, log: list[Any]) -> None:
        self.device, self.log = CPU, log

    def pin_memory(self) -> "FakeTensor":
        self.log.append("pinned")
        return self

    def to(self, device: torch.device, non_blocking: bool = False) -> str:
        self.log.append((device.type, non_blocking))
        return "copy"


def test_to_a_gpu_through_pinned_memory_without_waiting() -> None:
    log: list[Any] = []
    assert to_device(FakeTensor(log), CUDA) == "copy"  # type: ignore[arg-type, comparison-overlap]
    assert log == ["pinned", ("cuda", True)]


def test_training_data_and_models_are_copied_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices and crops of a batch, and the payload."""
    from fedsyn_flwr.compute import device
    from fedsyn_flwr.data import ImageSet, ResidentData, augment, resident

    crossed: list[tuple[str, torch.dtype, int]] = []

    def spy(where: str) -> Any:
        return lambda x, device: (crossed.append((where, x.dtype, x.dim())), x)[1]

    for module in (device, resident):
        monkeypatch.setattr(module, "to_device", spy(module.__name__.split(".")[-1]))
    pixels = np.zeros((4, 3, 8, 8), np.uint8)
    images = ImageSet(pixels, np.zeros(4, np.int64), {}, ["a"])
    data = ResidentData(images, [0.5] * 3, [0.5] * 3, CPU)
    rows = torch.arange(4)
    augment(data.x(rows), torch.Generator())
    data.y(rows)
    assert [dim for _, dtype, dim in crossed if dtype == torch.int64] == [1, 2, 2, 1]
    crossed.clear()
    model, elsewhere = FlatModel(nn.Linear(2, 2)), FlatModel(nn.Linear(2, 2, device="meta"))
    vectors = model.copy_vectors()
    for array in vectors.values():
        array.flags.writeable = False  # as from shared memory
    elsewhere.load(vectors)
    assert [where for where, *_ in crossed] == ["device"] * 3
    model.load({kind: array + 1 for kind, array in vectors.items()})
    assert len(crossed) == 3
    assert digest(model.vectors()) == digest({kind: a + 1 for kind, a in vectors.items()})


def test_normalising_makes_its_constants_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant that is made on a device waits for it."""
    from fedsyn_flwr.data import normalise

    x, mean = torch.zeros(1, 2, 3, 3, dtype=torch.uint8), [0.123, 0.4]
    first = normalise(x, mean, mean)
    monkeypatch.setattr(torch, "tensor", lambda *_, **__: pytest.fail("made again"))
    assert torch.equal(normalise(x, mean, mean), first)


# ---- bfloat16


def test_autocast_is_off_by_default_and_bfloat16_else() -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with precision(CPU, mixed=False):
        assert model(x).dtype == torch.float32
    with precision(CPU, mixed=True):
        assert not torch.is_autocast_cache_enabled()
        logits = model(x)
        loss = F.cross_entropy(logits, torch.tensor([0, 1]))
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    loss.backward()
    assert model.weight.grad.dtype == torch.float32  # type: ignore[union-attr]


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_a_few_steps_in_bfloat16_are_near_float32() -> None:
    """Eight bits of mantissa, eight steps: off by less than a fifth of the way they went."""
    start = cnn().trainable
    keys = {"learning_rate": 0.01, "local_epochs": 2}
    exact, mixed = (trained(plainly, cnn(), amp=amp, **keys).trainable for amp in (False, True))
    assert mixed.dtype == torch.float32
    assert 0 < distance(mixed - start, exact - start) < 0.2


@pytest.mark.parametrize("name", ["cnn", "vgg8"])
def test_inversion_in_bfloat16(name: str) -> None:
    exact, mixed = inverted(plainly, name=name), inverted(plainly, amp=True, name=name)
    assert mixed.dtype == torch.float32
    assert 0 < distance(mixed, exact) < 0.3  # Adam's first steps follow the gradient's sign


def test_distillation_in_bfloat16() -> None:
    exact, mixed = distilled(plainly).trainable, distilled(plainly, amp=True).trainable
    assert 0 < distance(mixed, exact) < 0.2


def test_the_kernel_distances_stay_float32() -> None:
    """Differences of large numbers: bfloat16 would leave nothing of them."""
    z = 100 + torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    with precision(CPU, mixed=True):
        found = losses.squared_distances(z)
    exact = losses.squared_distances(z.double())
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("key", ["amp", "cuda-graphs"])
def test_keys_are_checked(key: str) -> None:
    with pytest.raises(UserError, match=f"^{key} = 'maybe': "):
        config.load(config.merged({key: "maybe"}))
    assert config.merged()[key] is False


def test_amp_needs_a_device_with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.load(config.merged({"amp": True, "device": "cpu"}))
    assert build.device(settings) == CPU
    monkeypatch.setattr(build, "has_bfloat16", lambda device: False)
    with pytest.raises(UserError, match=r"^amp = true: cpu does not compute in bfloat16; set amp"):
        build.device(settings)
    plain = config.load(config.merged({"device": "cpu"}))
    assert build.device(plain) == CPU


def test_bfloat16_is_asked_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    for has in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)  # noqa: B023
        assert has_bfloat16(CUDA) is has
        assert has_bfloat16(CPU)


# ---- memory


def fake_ray(started: bool, mode: int, resources: dict[str, float]) -> Any:
    context = SimpleNamespace(
        worker=SimpleNamespace(mode=mode), get_assigned_resources=lambda: resources
    )
    return SimpleNamespace(
        WORKER_MODE=1, is_initialized=lambda: started, get_runtime_context=lambda: context
    )


@pytest.mark.parametrize(
    ("ray", "share"),
    [
        (None, 0.0),
        (fake_ray(False, 1, {"GPU": 0.5}), 0.0),
        (fake_ray(True, 0, {"GPU": 0.5}), 0.0),  # the driver
        (fake_ray(True, 1, {"CPU": 2.0}), 0.0),
        (fake_ray(True, 1, {"CPU": 2.0, "GPU": 0.25}), 0.25),
    ],
)
def test_share_of_an_actor(monkeypatch: pytest.MonkeyPatch, ray: Any, share: float) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert gpu_share() == share


@pytest.mark.sim
def test_ray_tells_an_actor_its_share() -> None:
    """Ray counts GPUs as it is told, whether there are any or not."""
    import ray

    ray.init(num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        assert gpu_share() == 0
        inside = ray.remote(num_cpus=1, num_gpus=0.25)(lambda: gpu_share())
        assert ray.get(inside.remote()) == 0.25
    finally:
        ray.shutdown()


def test_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: asked.append(given)
    )
    for device, share in ((CPU, 0.5), (CUDA, 0.0), (CUDA, 1.0), (CUDA, 2.0)):
        bound_memory(device, share)
    assert asked == []
    bound_memory(CUDA, 0.5)
    bound_memory(torch.device("cuda:1"), 0.25)
    assert asked == [(0.45, None), (0.225, 1)]
