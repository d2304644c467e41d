"""Flat models and payloads: views, round trips, refusals."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsyn_flwr.client.training import SGD, step
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import (
    MESSAGE_LIMIT,
    from_parameters,
    nbytes,
    pack,
    to_parameters,
    unpack,
)
from fedsyn_flwr.models import build_model
from fedsyn_flwr.models.flat_model import FlatModel, digest


def flat(seed: int = 0, norm: str = "bn", channels_last: bool = True) -> FlatModel:
    model = build_model("cnn", in_shape=(1, 8, 8), num_classes=4, norm=norm, width=0.25, seed=seed)
    return FlatModel(model, channels_last=channels_last)


@pytest.mark.parametrize("channels_last", [True, False])
def test_flattening_keeps_every_value(channels_last: bool) -> None:
    plain = build_model("cnn", in_shape=(1, 8, 8), num_classes=4, norm="bn", width=0.25, seed=0)
    ours = flat(channels_last=channels_last)
    for name, tensor in ours.module.state_dict().items():
        assert torch.equal(tensor, plain.state_dict()[name]), name
    conv = ours.module.trunk[0].weight
    # with one input channel both formats coincide; the second convolution tells them apart
    assert conv.shape[1] == 1
    second = next(p for p in list(ours.module.parameters())[1:] if p.dim() == 4)
    assert second.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_kinds_are_kept_apart() -> None:
    ours = flat()
    module = ours.module
    assert ours.trainable.numel() == sum(p.numel() for p in module.parameters())
    floats = [b for b in module.buffers() if b.is_floating_point()]
    assert ours.buffers.numel() == sum(b.numel() for b in floats)
    assert ours.counters.dtype == torch.int64
    assert ours.counters.numel() == 2  # one num_batches_tracked per BatchNorm


def test_module_and_vector_are_one_memory() -> None:
    ours = flat()
    ours.trainable.fill_(0.5)
    assert all((p == 0.5).all() for p in ours.module.parameters())
    ours.module.train()
    ours.module(torch.randn(4, 1, 8, 8)).sum().backward()
    assert ours.grad.abs().sum() > 0
    assert (ours.counters == 1).all()
    assert ours.grad.norm() == pytest.approx(
        torch.stack([p.grad.norm() for p in ours.module.parameters()]).norm().item(), rel=1e-5
    )


def test_gradients_stay_with_pytorch_until_they_are_asked_for_as_one_vector() -> None:
    ours, x = flat(), torch.randn(4, 1, 8, 8)
    parameters = dict(ours.module.named_parameters())

    def objective() -> torch.Tensor:  # does not depend on the classifier
        return ours.module.neck(ours.module.forward_map(x)).square().sum()

    expected = torch.autograd.grad(objective(), ours.parameters, allow_unused=True)
    assert any(gradient is None for gradient in expected)
    ours.backward(objective())
    trunk = parameters["trunk.0.weight"]
    made = trunk.grad
    ours.gather()
    assert trunk.grad is not made
    for theirs, own in zip(expected, ours.gradients, strict=True):
        assert torch.equal(own, torch.zeros_like(own) if theirs is None else theirs)
    ours.grad += 1  # reaches every one of them
    for theirs, own in zip(expected, ours.gradients, strict=True):
        assert torch.equal(own, torch.ones_like(own) if theirs is None else theirs + 1)
    assert torch.equal(ours.grad, ours.trainable.grad)
    ours.backward(2 * objective())  # over what was there
    for theirs, own in zip(expected, ours.gradients, strict=True):
        torch.testing.assert_close(own, torch.zeros_like(own) if theirs is None else 2 * theirs)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 1e6])
def test_a_step_is_pytorchs_and_makes_no_vector_of_gradients(clip_norm: float) -> None:
    ours, theirs, x = flat(), flat(), torch.randn(4, 1, 8, 8)
    settings = SimpleNamespace(learning_rate=0.1, momentum=0.9, weight_decay=1e-4)
    own = SGD(ours.parameters, settings)
    optimiser = torch.optim.SGD(theirs.module.parameters(), 0.1, 0.9, weight_decay=1e-4)
    for _ in range(3):
        ours.backward(ours.module(x).square().sum())
        step(ours, own, clip_norm)
        optimiser.zero_grad()
        theirs.module(x).square().sum().backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(theirs.module.parameters(), clip_norm)
        optimiser.step()
    assert ours.digest() == theirs.digest() != flat().digest()
    assert "_places" not in vars(ours)
    step(ours, own, clip_norm, lambda: ours.grad.zero_())
    assert "_places" in vars(ours)  # that a method asked for


def test_load_is_the_inverse_of_vectors() -> None:
    one, two = flat(seed=0), flat(seed=1)
    assert one.digest() != two.digest()
    two.load(one.copy_vectors())
    assert one.digest() == two.digest()
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(one.module.eval()(x), two.module.eval()(x))


def test_another_size_is_refused() -> None:
    one = flat()
    vectors = one.copy_vectors()
    vectors["trainable"] = vectors["trainable"][:-1]
    with pytest.raises(UserError, match="model mismatch: trainable"):
        one.load(vectors)


def test_layout_tells_architectures_apart() -> None:
    assert flat(norm="bn").layout != flat(norm="gn").layout
    assert flat(channels_last=True).layout != flat(channels_last=False).layout
    assert flat(seed=0).layout == flat(seed=1).layout


arrays = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_]),
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
groups = st.dictionaries(names, st.dictionaries(names, arrays, max_size=3), max_size=3)


@settings(deadline=None, max_examples=60)
@given(groups)
def test_payload_round_trip(sent: dict[str, dict[str, np.ndarray]]) -> None:
    parameters = to_parameters(sent, "layout")
    received = from_parameters(parameters, "layout")
    assert list(received) == list(sent)
    for group, members in sent.items():
        assert list(received[group]) == list(members)
        for name, array in members.items():
            got = received[group][name]
            assert got.dtype == array.dtype
            assert np.array_equal(got, array, equal_nan=array.dtype.kind == "f")
    assert nbytes(parameters) == sum(len(t) for t in parameters.tensors)


def test_payload_of_another_layout_is_refused() -> None:
    with pytest.raises(UserError, match="layout a received, b expected"):
        unpack(pack({"model": {}}, "a"), "b")


@pytest.mark.parametrize("bad", [[], [np.zeros(3)], [np.frombuffer(b"{}", np.uint8)]])
def test_foreign_payload_is_refused(bad: list[np.ndarray]) -> None:
    with pytest.raises(UserError, match="without a header"):
        unpack(bad, "a")


def test_digest_depends_on_every_kind() -> None:
    base = flat().copy_vectors()
    for kind in base:
        changed = {k: v.copy() for k, v in base.items()}
        changed[kind][-1] += 1
        assert digest(changed) != digest(base), kind


def test_too_much_for_a_message_is_refused_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = {"model": {"w": np.zeros(500_000, np.float32)}, "synthetic": {"x": np.zeros(10**6)}}
    monkeypatch.setattr("fedsyn_flwr.messages.payload.MESSAGE_LIMIT", 10 * 10**6)
    assert to_parameters(sent, "a")
    monkeypatch.setattr("fedsyn_flwr.messages.payload.MESSAGE_LIMIT", 10 * 10**6 - 1)
    complaint = r"10\.0 MB \(model 2\.0, synthetic 8\.0\) is over .* 10\.0 MB: a smaller pool-max"
    with pytest.raises(UserError, match=complaint):
        to_parameters(sent, "a")


def test_the_limit_is_half_of_protobufs() -> None:
    assert MESSAGE_LIMIT == 2**30 - 1
