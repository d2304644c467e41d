"""What only a GPU can show; needs torch, numpy and pytest, nothing else of the app.

Never run so far: written on machines without one.
"""

from functools import partial

import numpy as np
import pytest
import torch
from passes import cnn, distilled, inverted, settings, trained, vgg
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.client.training import Batch, Loss, train_local
from fedsyn_flwr.compute.cuda_graphs import Graphs, Passes, plainly
from fedsyn_flwr.compute.device import bound_memory
from fedsyn_flwr.data import ImageSet, ResidentData, augment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("what", ["training", "inversion", "distillation"])
def test_gpu_replays_are_near_the_plain_passes(what: str, amp: bool) -> None:
    """The same kernels on the same numbers, dropout's random ones included; a loose bound."""

    def result(passes: Passes) -> Tensor:
        if what == "inversion":
            return inverted(passes, amp, device="cuda")
        if what == "distillation":
            return distilled(passes, amp, device="cuda").trainable
        return trained(passes, vgg("cuda"), amp=amp, learning_rate=0.01).trainable

    g = Graphs()
    plain, replayed = result(plainly), result(g.of(0))
    assert g.recorded
    assert float((replayed - plain).norm() / plain.norm()) < (0.1 if amp else 0.01)


def test_gpu_vectors_there_and_back() -> None:
    flat = cnn("cuda")
    sent = {kind: np.ones_like(v) for kind, v in flat.vectors().items()}
    flat.load(sent)
    for kind, array in flat.vectors().items():
        np.testing.assert_array_equal(array, sent[kind])


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
def test_gpu_epoch_without_waiting(amp: bool, graphs: bool) -> None:
    """PyTorch raises where the host waits for the device; the first time is for recording."""
    flat = cnn("cuda")
    pixels = np.random.default_rng(0).integers(0, 256, (64, 3, 16, 16), dtype=np.uint8)
    labels = np.arange(64) % 4
    data = ResidentData(ImageSet(pixels, labels, {}, list("abcd")), [0.5] * 3, [0.5] * 3, "cuda")
    passes, source = Graphs().of(0) if graphs else plainly, torch.Generator()

    def fetch(chosen: Tensor) -> Batch:
        return Batch(augment(data.x(chosen), source), data.y(chosen))

    def loss(batch: Batch) -> Loss:
        value = F.cross_entropy(flat.module(batch.x), batch.y)
        return Loss(value, value)

    keys = settings(batch_size=16, local_epochs=2, amp=amp)
    rows, steps = torch.arange(64), []  # four steps an epoch

    def strict() -> None:
        steps.append(1)
        torch.cuda.set_sync_debug_mode("error" if len(steps) < 8 else "default")

    train = partial(train_local, flat, rows, fetch, loss, keys, seed=0, passes=passes)
    train(key=(1,))
    try:
        result = train(key=(2,), after_step=strict)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert np.isfinite(result.loss)


def test_gpu_memory_bound() -> None:
    before = torch.cuda.get_per_process_memory_fraction()
    try:
        bound_memory(CUDA, 0.1)
        total = torch.cuda.get_device_properties(0).total_memory
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(int(0.2 * total), dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(before)
