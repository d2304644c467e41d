"""Every model with every norm on every image size: shapes, cuts, gradients, sizes."""

import pytest
import torch

from fedsyn_flwr.models import MODELS, NORMS, build_model

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]
CASES = [
    (name, norm, shape)
    for name, spec in MODELS.items()
    for norm in NORMS
    for shape in SHAPES
    if min(shape[1:]) >= spec.min_size
]
NAMES = list(MODELS)
# last map of each model at width 0.25 on 32x32 images
MAPS = {"mlp": (32,), "cnn": (16, 8, 8), "lenet": (4, 8, 8), "vgg8": (128, 1, 1),
        "resnet18": (128, 4, 4), "cnn-gap": (32, 8, 8)}  # fmt: skip
FULL_DIMS = {"mlp": 128, "cnn": 128, "cnn-gap": 128, "lenet": 84, "vgg8": 512, "resnet18": 512}


def _images(n, shape):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(1))


def _small(name, norm="gn", shape=(3, 32, 32), **kwargs):
    options = {"num_classes": 7, "width": 0.25, "seed": 0, **kwargs}
    return build_model(name, in_shape=shape, norm=norm, **options)


def _count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "norm", "shape"), CASES)
def test_shapes_and_forward_is_the_chain_of_the_parts(name, norm, shape):
    model = _small(name, norm, shape).eval()
    x = _images(2, shape)

    fmap, z, logits = model.forward_map(x), model.forward_features(x), model(x)

    assert fmap.shape[0] == 2
    assert fmap.ndim == (2 if name == "mlp" else 4)
    assert z.shape == (2, model.feature_dim)
    assert logits.shape == (2, model.num_classes) == (2, 7)
    assert torch.equal(model.trunk(x), fmap)
    assert torch.equal(model.neck(fmap), z)
    assert torch.equal(model.classifier(z), logits)


@pytest.mark.parametrize(("name", "norm", "shape"), CASES)
def test_a_gradient_reaches_every_parameter_and_the_images(name, norm, shape):
    model = _small(name, norm, shape)
    x = _images(4, shape).requires_grad_()

    torch.nn.functional.cross_entropy(model(x), torch.arange(4)).backward()

    # a lone unit may be dead, a whole tensor may not
    dead = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert dead == []
    assert x.grad.any()


@pytest.mark.parametrize(("name", "norm", "shape"), CASES)
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_of_one_works(name, norm, shape, training):
    model = _small(name, norm, shape).train(training)

    assert model(_images(1, shape)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", NORMS)
def test_batch_statistics_are_there_with_batch_norm_only(name, norm):
    model = _small(name, norm)

    assert model.has_batch_stats == (norm == "bn")
    suffixes = {key.rsplit(".", 1)[-1] for key, _ in model.named_buffers()}
    expected = {"running_mean", "running_var", "num_batches_tracked"} if norm == "bn" else set()
    assert suffixes == expected


@pytest.mark.parametrize("name", NAMES)
def test_keeping_map_and_features_is_safe(name):
    model = _small(name).eval()
    fmap = model.forward_map(_images(2, (3, 32, 32)))
    kept_map = fmap.clone()
    z = model.neck(fmap)
    kept_z = z.clone()
    model.classifier(z)

    assert torch.equal(fmap, kept_map)
    assert torch.equal(z, kept_z)
    assert tuple(fmap.shape[1:]) == MAPS[name]


@pytest.mark.parametrize(
    ("name", "norm", "shape", "parameters"),
    [
        ("cnn", "none", (3, 32, 32), 545_098),
        ("cnn-gap", "none", (3, 32, 32), 94_538),
        ("resnet18", "bn", (3, 32, 32), 11_173_962),
        ("lenet", "none", (1, 28, 28), 107_786),
        ("mlp", "none", (1, 28, 28), 1_985_930),
        ("vgg8", "bn", (3, 32, 32), 4_180_042),
    ],
)
def test_parameter_counts_at_full_width(name, norm, shape, parameters):
    model = build_model(name, in_shape=shape, num_classes=10, norm=norm, seed=0)

    assert _count(model) == parameters
    assert model.feature_dim == FULL_DIMS[name]


def test_vgg8_pools_large_images_and_takes_the_smallest():
    large, least = _small("vgg8", shape=(3, 64, 64)), _small("vgg8", shape=(3, 16, 16))

    assert large.forward_map(_images(1, (3, 64, 64))).shape == (1, 128, 2, 2)
    assert large(_images(1, (3, 64, 64))).shape == (1, 7)
    assert least(_images(1, (3, 16, 16))).shape == (1, 7)


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-gap", "lenet", "resnet18"])
def test_images_need_not_be_square(name):
    assert _small(name, shape=(1, 9, 14))(_images(2, (1, 9, 14))).shape == (2, 7)


@pytest.mark.parametrize("name", NAMES)
def test_channels_last_gives_the_same_logits(name):
    model, x = _small(name).eval(), _images(2, (3, 32, 32))
    expected = model(x)

    model = model.to(memory_format=torch.channels_last)
    logits = model(x.to(memory_format=torch.channels_last))

    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "vgg8"])
def test_a_projection_head_ends_the_neck(name):
    plain = _small(name)
    model = _small(name, projection_dim=5)
    x = _images(2, (3, 32, 32))
    d = plain.feature_dim
    assert _count(model) - _count(plain) == d * d + d + 5 * d + 5 + 7 * (5 + 1) - 7 * (d + 1)
    z = model.forward_features(x)
    assert z.shape == (2, 5)
    assert (z < 0).any()  # no ReLU behind the projection
    assert torch.equal(model.classifier(z), model(x))
    # what comes before is what it was without the head
    assert torch.equal(model.forward_map(x), plain.forward_map(x))
    again = _small(name, projection_dim=5)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
