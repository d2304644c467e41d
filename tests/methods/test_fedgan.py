"""FedGAN: its networks and losses, what is sent and averaged before round 1, the pool after it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation

from clients.fedgan import FedGANClient
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.rng import Reshuffled, torch_generator
from fedsyn_flwr.synthesis import acgan
from fedsyn_flwr.synthesis.acgan import GANSettings, Trainer, Verdict, build_gan

QUICK: dict[str, Any] = {
    "strategy": "fedgan",
    "num-server-rounds": 2,
    "limit-train": 200,
    "model-width": 0.25,
    "gan-rounds": 2,
    "gan-steps": 3,
    "gan-width": 4,
    "synthesis-per-client": 8,
}
CPU = torch.device("cpu")


def federation(folder: Path, clients: int = 4, **keys: Any) -> Federation:
    return Federation(folder, clients, **{**QUICK, **keys})


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


# ---- networks and losses


@pytest.mark.parametrize(
    ("shape", "smallest"),
    [
        ((1, 8, 8), (4, 4)),
        ((1, 28, 28), (7, 7)),
        ((3, 32, 32), (4, 4)),
        ((3, 30, 30), (8, 8)),
        ((1, 8, 13), (4, 7)),
    ],
)
def test_networks_of_any_size(shape: tuple[int, int, int], smallest: tuple[int, int]) -> None:
    gan = build_gan(GANSettings(5, 4, 1e-3, 0.5), 3, shape, seed=0, device=CPU)
    generator, y = gan.generator.module, torch.tensor([0, 2])
    assert generator.smallest[1:] == smallest
    images = generator(generator.draw(2, torch.Generator().manual_seed(0)), y)
    assert images.shape == (2, *shape)
    assert images.abs().max() <= 1
    verdict = gan.discriminator.module(images)
    assert verdict.real.shape == (2,)
    assert verdict.classes.shape == (2, 3)


def test_losses_by_hand() -> None:
    """σ(0) = 1/2, σ(ln 3) = 3/4; classes 1/2 and 1/4 of the softmax."""
    ln2, ln3 = float(np.log(2)), float(np.log(3))
    real = Verdict(torch.tensor([0.0, ln3]), torch.tensor([[ln2, 0.0, 0.0], [0.0, ln2, 0.0]]))
    fake = Verdict(torch.tensor([ln3]), torch.tensor([[ln2, 0.0, 0.0]]))
    y, drawn = torch.tensor([0, 0]), torch.tensor([1])
    source = (np.log(2) + np.log(4 / 3)) / 2 + np.log(4)
    classes = (np.log(2) + np.log(4)) / 2 + np.log(4)
    found = float(acgan.discriminator_loss(real, y, fake, drawn))
    assert found == pytest.approx(source + classes, abs=1e-6)
    assert float(acgan.generator_loss(fake, drawn)) == pytest.approx(
        np.log(4 / 3) + np.log(4), abs=1e-6
    )


def test_each_step_moves_its_own_network_by_its_own_gradient() -> None:
    """The first step of Adam is lr·sign of the gradient, here found by autograd once more."""
    settings = GANSettings(5, 4, 1e-3, 0.5)
    x, y = torch.rand(6, 1, 8, 8) * 2 - 1, torch.tensor([0, 1, 2, 0, 1, 2])
    gan, twin = (build_gan(settings, 3, (1, 8, 8), seed=1, device=CPU) for _ in range(2))
    before = [n.trainable.clone() for n in gan]
    Trainer(gan, settings, torch.Generator().manual_seed(4)).step(x, y)
    g, d = (n.module for n in twin)
    images = g(g.draw(6, torch.Generator().manual_seed(4)), y)
    acgan.discriminator_loss(d(x), y, d(images.detach()), y).backward()
    steps = [n.trainable - b for n, b in zip(gan, before, strict=True)]
    expected = -settings.lr * twin.discriminator.grad.sign()
    sure = twin.discriminator.grad.abs() > 1e-5
    torch.testing.assert_close(steps[1][sure], expected[sure], rtol=1e-2, atol=1e-6)
    twin.discriminator.trainable.data += steps[1]
    acgan.generator_loss(d(images), y).backward()
    sure = twin.generator.grad.abs() > 1e-5
    expected = -settings.lr * twin.generator.grad.sign()
    torch.testing.assert_close(steps[0][sure], expected[sure], rtol=1e-2, atol=1e-6)
    assert sure.float().mean() > 0.5


def test_generated_digits_are_of_the_class_asked_for(tmp_path: Path) -> None:
    """One client: the real images' class means recognise most of what was generated."""
    keys = {"gan-steps": 75, "gan-width": 16, "synthesis-per-client": 100, "limit-train": 0}
    f = federation(tmp_path, 1, **keys, **{"num-server-rounds": 1, "privacy-report": False}).run()
    pool, data = f.strategy.pool.pixels(), f.worker.data
    real = data.images.numpy().reshape(len(data.labels), -1) / 255
    means = np.stack([real[data.labels.numpy() == c].mean(axis=0) for c in range(10)])
    made = pool["images"].reshape(len(pool["labels"]), -1) / 255
    nearest = ((made[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == pool["labels"]).mean() > 0.6
    assert lines(f)[0]["gan/collapsed_classes"] == 0


def test_collapse_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images[:, None].astype(np.float64), digits.target.copy()
    assert acgan.collapsed(images, labels) == []
    noise = np.random.default_rng(0).normal(0, 0.1, images.shape)
    for c in (3, 7):
        images[labels == c] = images[labels == c][0] + noise[labels == c]
    assert acgan.collapsed(images, labels) == [3, 7]
    assert acgan.collapsed(np.zeros((4, 1, 2, 2)), np.array([0, 0, 1, 2])) == [0]


# ---- in a run


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_alpha_one_is_fedavg(tmp_path: Path, norm: str) -> None:
    fedavg = federation(tmp_path / "a", strategy="fedavg", norm=norm).run()
    alone = federation(tmp_path / "b", norm=norm, **{"hfmds-alpha": 1}).run()
    mixed = federation(tmp_path / "c", norm=norm).run()
    assert digest(fedavg.model) == digest(alone.model) != digest(mixed.model)


def test_networks_are_averaged_by_samples(tmp_path: Path) -> None:
    """One round of the GAN against two trainers and their weighted mean by hand."""
    f = federation(tmp_path, 2, **{"gan-rounds": 1, "num-server-rounds": 1})
    first = {name: group["trainable"].copy() for name, group in f.strategy.networks.items()}
    f.run()
    data, sizes = f.worker.data, [len(p) for p in f.worker.partitions]
    trained: dict[str, list[np.ndarray]] = {"generator": [], "discriminator": []}
    for k, rows in enumerate(f.worker.partitions):
        settings = f.worker.settings.params.gan()
        gan = build_gan(settings, 10, data.shape, seed=0, device=CPU)
        for name, network in gan._asdict().items():
            network.trainable.data.copy_(torch.from_numpy(first[name]))
        source = torch_generator(0, 1, k, "gan-1")
        trainer, order = Trainer(gan, settings, source), Reshuffled(len(rows), source)
        for _ in range(3):
            chosen = rows[order.take(32)]
            pixels = data.images[chosen].float() / 255
            trainer.step(2 * pixels - 1, data.labels[chosen])
        for name, network in gan._asdict().items():
            trained[name].append(network.trainable.detach().numpy())
    for name, parts in trained.items():
        mean = np.average(np.stack(parts).astype(np.float64), axis=0, weights=sizes)
        np.testing.assert_allclose(f.strategy.networks[name]["trainable"], mean, atol=1e-5)


def test_what_is_sent_and_counted(tmp_path: Path) -> None:
    f = federation(tmp_path).run()
    row, later = lines(f)
    phases = [call["phase"] for call in f.proxies[2].calls]
    assert phases == ["gan", "gan", "samples", "train", "train"]
    networks = f.strategy.networks
    sizes = {n: sum(a.nbytes for a in group.values()) for n, group in networks.items()}
    both = sum(sizes.values())
    pool = sum(a.nbytes for a in f.strategy.pool.arrays.values())
    down = 4 * (2 * both + sizes["generator"] + pool)
    assert row["bytes/down"] - later["bytes/down"] == pytest.approx(down, abs=16 * 900)
    up = 4 * 2 * both + pool
    assert row["bytes/up"] - later["bytes/up"] == pytest.approx(up, abs=12 * 900)
    assert 0 < row["seconds/gan"] <= row["seconds/round"]
    assert row["flops/gan"] % 6 == 0  # two rounds of three equal steps
    assert row["client_seconds/gan"] > 0
    assert np.isfinite([row["gan/generator_loss"], row["gan/discriminator_loss"]]).all()


def test_each_client_sends_its_own_classes(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"partition": "classes", "classes-per-client": 3}).run()
    labels = f.strategy.pool.arrays["labels"].reshape(4, 8)
    for k, rows in enumerate(f.worker.partitions):
        assert set(labels[k].tolist()) <= set(f.worker.data.labels[rows].tolist())


def test_pairs_are_the_nearest_of_their_class(tmp_path: Path) -> None:
    f = federation(tmp_path, partition="iid")
    client = FedGANClient(f.worker, 1)
    pixels, y = torch.rand(5, 1, 8, 8), client.labels[:5]
    found = client.nearest_of_class(pixels, y)
    real = f.worker.data.images[client.indices].double() / 255
    for i in range(5):
        distances = (real - pixels[i].double()).square().flatten(1).sum(dim=1)
        distances[client.labels != y[i]] = np.inf
        assert int(found[i]) == int(distances.argmin())


def test_clients_of_few_or_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = np.split(np.arange(100), [0, 1, 4])
    monkeypatch.setattr("fedsyn_flwr.build.partitions", lambda *_: parts)
    f = federation(tmp_path, **{"limit-train": 100, "norm": "bn"}).run()
    assert [row["clients/failed"] for row in lines(f)] == [0, 0]
    assert len(f.strategy.pool.arrays["labels"]) == 0 + 1 + 3 + 8


def test_divergence_ends_the_run(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"gan-lr": 1e30})
    f.run()
    status = json.loads((f.folder / "status.json").read_text())
    assert status["status"] == "failed"
    assert "0 of 4 clients sent networks that can be used in round 1" in status["reason"]
    assert "NaN" in status["reason"]
    assert status["reason"].endswith("lower gan-lr")
