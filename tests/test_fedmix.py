"""FedMix and NaiveMix: averages by hand, the second-order loss against other ways to compute it."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation
from torch.nn import functional as F

from clients.fedmix import FedMixClient
from fedsyn_flwr.flat import digest
from fedsyn_flwr.models import build_model
from fedsyn_flwr.report.samples import read_pool
from fedsyn_flwr.synthesis import mixing
from fedsyn_flwr.synthesis.pool import problem_with

QUICK: dict[str, Any] = {
    "strategy": "fedmix",
    "num-server-rounds": 3,
    "limit-train": 200,
    "model-width": 0.25,
}
LAM = 0.2


def federation(folder: Path, clients: int = 4, **keys: Any) -> Federation:
    return Federation(folder, clients, **{**QUICK, **keys})


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


# ---- averages


@pytest.mark.parametrize(
    ("n", "size", "count", "each"),
    [(10, 5, 2, 5), (14, 5, 2, 5), (5, 5, 1, 5), (3, 5, 1, 3), (1, 5, 1, 1), (0, 5, 0, 0)],
)
def test_groups_are_full_and_share_no_sample(n: int, size: int, count: int, each: int) -> None:
    groups = mixing.mean_groups(n, size, torch.Generator().manual_seed(0))
    assert groups.shape == (count, each)
    assert mixing.average_count(n, size) == count
    assert len(set(groups.flatten().tolist())) == count * each


def test_mean_label_by_hand() -> None:
    assert mixing.mean_label(torch.tensor([2, 0, 2, 2]), 4).tolist() == [0.25, 0.0, 0.75, 0.0]


def test_averages_by_hand(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"fedmix-mean-size": 3})
    data, client = f.worker.data, FedMixClient(f.worker, 1)
    x, y = client.averages(torch.tensor([[0, 2, 4], [1, 3, 5]]))
    a, b, c = client.indices[[1, 3, 5]].tolist()
    pixels = (data.images[a].double() + data.images[b] + data.images[c]) / 3 / 255
    torch.testing.assert_close(x[1].double(), (pixels - 0.3053) / 0.3759, rtol=0, atol=1e-6)
    counts = np.bincount([int(data.labels[i]) for i in (a, b, c)], minlength=10)
    assert y[1].tolist() == pytest.approx(counts / 3)


# ---- the loss


def samples(norm: str, dtype: torch.dtype = torch.float64, name: str = "cnn") -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(3)
    model = build_model(name, in_shape=(1, 8, 8), num_classes=10, norm=norm, width=0.25, seed=0).to(
        dtype
    )
    x, mean_x = torch.randn(2, 4, 1, 8, 8, generator=g, dtype=dtype)
    y = torch.randint(10, (4,), generator=g)
    return model, x, y, mean_x, torch.rand(4, 10, generator=g, dtype=dtype).softmax(dim=1)


def gradient_of(model: Any, value: torch.Tensor) -> torch.Tensor:
    grads = torch.autograd.grad(value, list(model.parameters()))
    return torch.cat([g.flatten() for g in grads])


def per_sample(model: Any, x: Any, y: Any, mean_x: Any, mean_y: Any) -> torch.Tensor:
    """The formula, a sample at a time: its own derivative by all that it depends on."""
    scaled = ((1 - LAM) * x).requires_grad_()
    logits = model(scaled)
    total = torch.zeros((), dtype=x.dtype)
    for b in range(len(y)):
        log_p = logits[b] - logits[b].exp().sum().log()
        own, theirs = -log_p[y[b]], -(mean_y[b] * log_p).sum()
        (derivative,) = torch.autograd.grad(own, scaled, create_graph=True)
        if not model.training or "BatchNorm" not in str(model):
            assert (derivative[torch.arange(len(y)) != b] == 0).all()  # its own image only
        total = total + (1 - LAM) * own + LAM * theirs + LAM * (derivative * mean_x).sum()
    return total / len(y)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "norm"),
    [("cnn", "bn"), ("cnn", "gn"), ("cnn", "none")]
    + [(name, "bn") for name in ("mlp", "cnn-gap", "lenet", "resnet18")],
)
def test_loss_and_gradient_equal_a_loop_over_samples(name: str, norm: str, training: bool) -> None:
    model, *batch = samples(norm, name=name)
    model.train(training)
    loop = per_sample(model, *batch)
    found = mixing.fedmix(model, *batch, LAM).objective.mean()
    assert found.item() == pytest.approx(loop.item(), abs=1e-6)
    expected, got = gradient_of(model, loop), gradient_of(model, found)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_derivative_equals_forward_mode(norm: str) -> None:
    """λ·⟨∂CE/∂x', x̄⟩, summed over the batch, is the derivative of ΣCE along x̄: torch.func.jvp."""
    model, x, y, mean_x, mean_y = samples(norm)
    model.train()
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    weights = dict(model.named_parameters())

    def cross_entropies(point: torch.Tensor) -> torch.Tensor:
        fresh = {k: v.clone() for k, v in buffers.items()}
        logits = torch.func.functional_call(model, {**weights, **fresh}, (point,))
        return F.cross_entropy(logits, y, reduction="none")

    own, slope = torch.func.jvp(cross_entropies, ((1 - LAM) * x,), (mean_x,))
    found = mixing.fedmix(model, x, y, mean_x, mean_y, LAM)
    torch.testing.assert_close(found.cross_entropy, own, rtol=0, atol=1e-9)
    logits = model((1 - LAM) * x)
    theirs = F.cross_entropy(logits, mean_y, reduction="none")
    expected = ((1 - LAM) * own + LAM * theirs + LAM * slope).sum()
    assert found.objective.sum().item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_term_does_not_shrink_with_the_batch() -> None:
    """A sample's objective is the same whatever else is in the batch."""
    model, *batch = samples("gn")
    whole = mixing.fedmix(model, *batch, LAM).objective
    alone = torch.cat(
        [mixing.fedmix(model, *(v[i : i + 1] for v in batch), LAM).objective for i in range(4)]
    )
    torch.testing.assert_close(whole, alone, rtol=1e-9, atol=1e-9)


def test_fedmix_by_hand() -> None:
    """f(x) = (x, -x), x = 1, y = 0, x̄ = 2, ȳ = (0, 1), λ = ½: at x' = ½ CE = log(1 + e⁻¹)."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.flatten(1), -x.flatten(1)], dim=1)

    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    shares = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    found = mixing.fedmix(model, one, torch.tensor([0]), 2 * one, shares, 0.5)
    own = np.log1p(np.exp(-1))
    slope = -2 / (1 + np.e)  # dCE/dx' = -2σ(-2x')
    assert found.objective.item() == pytest.approx(0.5 * own + 0.5 * (own + 1) + 0.5 * slope * 2)
    assert found.cross_entropy.item() == pytest.approx(own)
    naive = mixing.naivemix(model, one, torch.tensor([0]), 2 * one, shares, 0.5)
    far = np.log1p(np.exp(-3))  # at x̃ = ½·1 + ½·2
    assert naive.objective.item() == pytest.approx(0.5 * far + 0.5 * (far + 3))


def test_lambda_zero_is_the_cross_entropy_to_the_bit() -> None:
    for loss in (mixing.fedmix, mixing.naivemix):
        model, x, y, mean_x, mean_y = samples("gn", torch.float32)
        plain = F.cross_entropy(model(x), y, reduction="none")
        assert torch.equal(loss(model, x, y, mean_x, mean_y, 0.0).objective, plain)


def test_naivemix_differs_from_fedmix_in_second_order() -> None:
    """Without ReLU's kinks in the way a tenth of λ leaves a hundredth of the difference."""
    torch.manual_seed(0)
    _, x, y, mean_x, _ = samples("gn")
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 9), torch.nn.Tanh(), torch.nn.Linear(9, 10)
    ).double()
    mean_y = F.one_hot(y, 10).double()  # equal labels: the derivative of ȳ's term is dropped, too
    gaps = []
    for lam in (1e-2, 1e-3):
        a, b = (
            loss(model, x, y, mean_x, mean_y, lam).objective.sum()
            for loss in (mixing.fedmix, mixing.naivemix)
        )
        gaps.append(abs((a - b).item()))
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.1)


class Saved:
    """A tensor that a graph keeps for its backward pass, counted while it is kept."""

    alive = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        Saved.alive += 1

    def __del__(self) -> None:
        Saved.alive -= 1


def test_nothing_of_a_step_stays() -> None:
    """The graph through the derivative goes with the step, without the garbage collector."""
    model, *batch = samples("bn", torch.float32)
    model.train()
    gc.disable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            for _ in range(3):
                objective = mixing.fedmix(model, *batch, LAM).objective.mean()
                kept = Saved.alive
                objective.backward()
                del objective
                assert kept > 0
                assert Saved.alive == 0
    finally:
        gc.enable()


# ---- in a run


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_lambda_zero_is_fedavg(tmp_path: Path, norm: str) -> None:
    def final(name: str, **keys: Any) -> str:
        return digest(federation(tmp_path / name, norm=norm, **keys).run().model)

    fedavg = final("a", strategy="fedavg")
    assert final("b", strategy="fedmix", **{"fedmix-lambda": 0}) == fedavg
    assert final("c", strategy="naivemix", **{"fedmix-lambda": 0}) == fedavg
    assert len({final("d"), final("e", strategy="naivemix"), fedavg}) == 3


def test_averages_are_sent_once_and_counted(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"fedmix-mean-size": 5, "partition": "iid"}).run()
    assert [len(p) for p in f.worker.partitions] == [50] * 4
    pool, rows = f.strategy.pool, lines(f)
    assert pool["images"].shape == (40, 1, 8, 8)
    assert pool["labels"].shape == (40, 10)
    np.testing.assert_allclose(pool["labels"].sum(axis=1), 1, rtol=1e-6)
    size = pool["images"].nbytes + pool["labels"].nbytes
    plain = rows[1]["bytes/down"]
    assert plain == rows[2]["bytes/down"]
    # four messages without a model, four with model and pool
    assert rows[0]["bytes/down"] - plain == pytest.approx(4 * size, abs=8 * 600)
    assert rows[0]["bytes/up"] - rows[1]["bytes/up"] == pytest.approx(size, abs=4 * 600)
    assert rows[0]["synthesis/pool_size"] == 40
    assert 0 < rows[0]["seconds/means"] <= rows[0]["seconds/round"]
    assert rows[0]["client_seconds/means"] > 0
    phases = [call["phase"] for call in f.proxies[2].calls]
    assert phases == ["means", "train", "train", "train"]


def test_privacy_pairs_an_average_with_each_of_its_images(tmp_path: Path) -> None:
    """One client, one average of all four images: PSNR by hand, and no guess can be wrong."""
    keys = {"limit-train": 4, "fedmix-mean-size": 8, "num-server-rounds": 1}
    f = federation(tmp_path, clients=1, **keys).run()
    images = f.worker.data.images.double() / 255
    psnr = [-10 * np.log10(((images.mean(0) - x) ** 2).mean().item()) for x in images]
    row = lines(f)[0]
    assert row["privacy/psnr_mean"] == pytest.approx(np.mean(psnr), abs=1e-3)
    assert row["privacy/psnr_max"] == pytest.approx(np.max(psnr), abs=1e-3)
    assert row["privacy/reid_chance"] == row["privacy/reid_pixel"] == 1


def test_pool_file_names_the_main_class(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"synthetic-dtype": "uint8", "num-server-rounds": 1}).run()
    found = read_pool(f.folder)
    assert found.labels.tolist() == f.strategy.pool["labels"].argmax(axis=1).tolist()
    assert np.array_equal(found.images, f.strategy.pool["images"].astype(np.float32) / 255)


def test_limited_pool_is_balanced_over_the_main_classes(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"pool-max": 10, "fedmix-mean-size": 1}).run()
    assert np.bincount(f.strategy.pool["labels"].argmax(axis=1)).tolist() == [1] * 10


def test_clients_of_few_or_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = np.split(np.arange(100), [0, 1, 4])
    monkeypatch.setattr("fedsyn_flwr.assembly.partitions", lambda *_: parts)
    f = federation(tmp_path, **{"limit-train": 100, "norm": "bn"}).run()
    assert [row["clients/failed"] for row in lines(f)] == [0, 0, 0]
    assert len(f.strategy.pool["labels"]) == 1 + 1 + 96 // 5


def test_too_few_averages_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    f = federation(tmp_path)

    def broken(client: FedMixClient) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(FedMixClient, "send_means", broken)
    f.run()
    status = json.loads((f.folder / "status.json").read_text())
    assert status["status"] == "failed"
    assert status["reason"].startswith("0 of 4 clients sent averages: client 0: ")
    assert "no memory left" in status["reason"]


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (np.zeros(2, np.int64), "with labels"),
        (np.full((2, 3), 1 / 3, np.float32), "with labels"),
        (np.full((2, 10), 0.1), "of type float64"),
        (np.full((2, 10), 0.2, np.float32), "no shares"),
        (np.array([[2.0, -1.0] + [0.0] * 8] * 2, np.float32), "no shares"),
    ],
)
def test_bad_shares_are_refused(labels: np.ndarray, complaint: str) -> None:
    images = np.zeros((2, 1, 2, 2), np.float32)

    def problem(labels: np.ndarray) -> str | None:
        part = {"images": images, "labels": labels}
        return problem_with(part, (1, 2, 2), 10, 4, "float32", soft=True)

    assert problem(np.full((2, 10), 0.1, np.float32)) is None
    assert complaint in str(problem(labels))
