"""Channel rounding, normalisation layers, the batch of one."""

import pytest
import torch
from torch import nn

from fedsyn_flwr.models.layers import (
    BatchNorm1d,
    BatchNorm2d,
    conv_block,
    linear_block,
    norm_layer,
    num_groups,
    scaled,
)


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3), (7, 1), (8, 4), (12, 6), (16, 8), (20, 5), (64, 8)],
)
def test_groups_are_the_largest_divisor_up_to_8_with_two_channels_each(channels, groups):
    assert num_groups(channels) == groups


def test_channels_are_rounded_and_stay_at_two_or_more():
    assert [scaled(c, 0.25) for c in (32, 6, 16, 84)] == [8, 2, 4, 21]
    assert scaled(64, 0.001) == 2


def test_group_norm_of_a_lone_vector_does_not_erase_it():
    out = norm_layer("gn", 2, dims=1)(torch.tensor([[1.0, 3.0]]))

    torch.testing.assert_close(out, torch.tensor([[-1.0, 1.0]]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_blocks_have_a_bias_only_without_norm(norm):
    for block in (conv_block, linear_block):
        assert block(2, 4, norm)[0].bias is None
        assert block(2, 4, "none")[0].bias is not None


@pytest.mark.parametrize(("layer", "shape"), [(BatchNorm1d, (1, 3)), (BatchNorm2d, (1, 3, 1, 1))])
def test_batch_norm_of_one_value_per_channel_uses_running_statistics(layer, shape):
    bn = layer(3)
    bn.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    bn.running_var.fill_(4.0)
    before = {k: v.clone() for k, v in bn.state_dict().items()}

    out = bn(torch.full(shape, 5.0))

    expected = torch.tensor([2.0, 1.5, 1.0]).reshape(shape)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
    assert all(torch.equal(before[k], v) for k, v in bn.state_dict().items())


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_torchs_otherwise(training):
    ours, theirs = BatchNorm2d(3).train(training), nn.BatchNorm2d(3).train(training)
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))

    assert torch.equal(ours(x), theirs(x))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(
        torch.equal(a, b)
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    )
