"""Resident tensors and whole-batch operations, against per-sample NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsyn_flwr.data.cache import ImageSet
from fedsyn_flwr.data.resident import ResidentData, Subset, adapt, augment, denormalise, normalise

from . import tables

MEAN, STD = (0.5, 0.25, 0.75), (0.5, 0.2, 0.1)


def image_set(n: int = 10, channels: int = 3, size: int = 8) -> ImageSet:
    labels = np.arange(n, dtype=np.int64) % 4
    images = tables.pixels(n, channels, size)
    images.flags.writeable = False
    return ImageSet(images, labels, {}, ["a", "b", "c", "d"])


def resident(channels: int = 3, **options: Any) -> ResidentData:
    return ResidentData(image_set(channels=channels), MEAN[:channels], STD[:channels], **options)


def test_normalise_by_hand() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    x = normalise(images, MEAN, STD)
    np.testing.assert_allclose(x.flatten().numpy(), [-1, 3.75, -5.5], rtol=1e-6)
    assert x.dtype == torch.float32


def test_denormalise_undoes_and_clamps() -> None:
    images = torch.from_numpy(tables.pixels(5, 3))
    back = denormalise(normalise(images, MEAN, STD), MEAN, STD)
    torch.testing.assert_close(back, images / 255)
    far = denormalise(torch.full((1, 3, 1, 1), 99.0), MEAN, STD)
    assert far.flatten().tolist() == [1, 1, 1]


@pytest.mark.parametrize("channels_last", [True, False])
def test_batches_are_the_rows_asked_for(channels_last: bool) -> None:
    data = resident(device="cpu", channels_last=channels_last)
    rows = torch.tensor([7, 0, 7])
    expected = (data.images.numpy()[[7, 0, 7]] / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(
        STD, (3, 1, 1)
    )
    np.testing.assert_allclose(data.x(rows).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert data.y(rows).tolist() == [3, 0, 3]
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    assert data.x(rows).is_contiguous(memory_format=wanted)
    assert (len(data), data.num_classes, data.shape) == (10, 4, (3, 8, 8))


def test_cpu_images_are_not_copied() -> None:
    source = image_set()
    data = ResidentData(source, MEAN, STD, "cpu")
    assert data.images.data_ptr() == source.images.__array_interface__["data"][0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("channels_last", [True, False])
def test_subset_equals_the_resident_batches(channels: int, channels_last: bool) -> None:
    data = resident(channels, device="cpu", channels_last=channels_last)
    rows, picks = torch.tensor([5, 2, 9]), torch.tensor([2, 2, 0])
    subset = data.subset(rows)
    x, y = subset.batch(picks)
    assert torch.equal(x, data.x(rows[picks]))
    assert torch.equal(y, data.y(rows[picks]))
    assert x.stride() == data.x(rows[picks]).stride()
    assert len(subset) == 3


def test_empty_subset() -> None:
    subset = resident(device="cpu").subset(torch.tensor([], dtype=torch.int64))
    x, y = subset.batch(torch.tensor([], dtype=torch.int64))
    assert len(subset) == 0
    assert x.shape == (0, 3, 8, 8)
    assert y.shape == (0,)
    assert augment(x, torch.Generator()).shape == (0, 3, 8, 8)


def test_subset_keeps_a_contiguous_format() -> None:
    subset = Subset(torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64))
    assert subset.batch(torch.tensor([1, 2]))[0].is_contiguous()


def _reference(x: NDArray[Any], seed: int, pad: int) -> NDArray[Any]:
    """Per-sample loop over the same draws: offsets (2, B, 1), then flips (B, 1)."""
    g = torch.Generator().manual_seed(seed)
    b, _, h, w = x.shape
    top, left = torch.randint(0, 2 * pad + 1, (2, b, 1), generator=g).numpy()[..., 0]
    flip = torch.randint(0, 2, (b, 1), generator=g).numpy()[:, 0]
    out = []
    for i in range(b):
        padded = np.pad(x[i], ((0, 0), (pad, pad), (pad, pad)))
        crop = padded[:, top[i] : top[i] + h, left[i] : left[i] + w]
        out.append(crop[:, :, ::-1] if flip[i] else crop)
    return np.stack(out)


@pytest.mark.parametrize(("shape", "pad"), [((40, 3, 32, 32), 4), ((9, 1, 8, 6), 2)])
def test_augment_equals_a_loop_over_samples(shape: tuple[int, ...], pad: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for layout in (torch.contiguous_format, torch.channels_last):
        ours = augment(
            x.contiguous(memory_format=layout), torch.Generator().manual_seed(5), padding=pad
        )
        np.testing.assert_array_equal(ours.numpy(), _reference(x.numpy(), 5, pad))
        assert ours.is_contiguous(memory_format=torch.channels_last)


def test_augment_draws_only_from_its_generator() -> None:
    x = torch.randn(16, 3, 32, 32)
    state = torch.get_rng_state()
    one = augment(x, torch.Generator().manual_seed(1))
    torch.manual_seed(99)
    again = augment(x, torch.Generator().manual_seed(1))
    other = augment(x, torch.Generator().manual_seed(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    torch.set_rng_state(state)
    augment(x, torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)


def test_augment_offsets_differ_between_samples() -> None:
    same = torch.rand(1, 1, 16, 16).expand(64, 1, 16, 16)
    out = augment(same, torch.Generator().manual_seed(0))
    assert len({bytes(image.contiguous().numpy()) for image in out}) > 40


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_gives_the_same_bits() -> None:
    x = torch.randn(8, 3, 32, 32)
    ours = augment(x.cuda(), torch.Generator().manual_seed(1))
    assert torch.equal(ours.cpu(), augment(x, torch.Generator().manual_seed(1)))
    data = resident(device="cuda")
    assert data.images.is_cuda
    assert data.subset(torch.arange(3)).x.is_cuda


def test_adapt_grey_to_colour_and_back() -> None:
    grey = torch.from_numpy(tables.pixels(4, 1))
    colour = adapt(grey, 3, 8)
    assert colour.shape == (4, 3, 8, 8)
    assert torch.equal(colour[:, 2], grey[:, 0])
    assert (adapt(colour, 1, 8).int() - grey.int()).abs().max() <= 1
    red = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    red[:, 0] = 200
    assert adapt(red, 1, 2).flatten().tolist() == [59] * 4  # 0.299 x 200


def test_adapt_sizes() -> None:
    flat = torch.full((2, 1, 28, 28), 77, dtype=torch.uint8)
    out = adapt(flat, 3, 32)
    assert out.shape == (2, 3, 32, 32)
    assert out.dtype == torch.uint8
    assert (out == 77).all()
    ramp = torch.arange(0, 256, 8, dtype=torch.uint8).expand(1, 1, 32, 32)
    assert torch.diff(adapt(ramp, 1, 8)[0, 0, 0].int()).min() > 0
    with pytest.raises(ValueError, match="1 or 3"):
        adapt(flat, 2, 32)
