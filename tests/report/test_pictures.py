"""Pictures of finished runs: what goes into them, by hand, and that they say what they show."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from finished import fedsyn, rows, write
from PIL import Image
from safetensors.torch import save_file

from fedsyn_flwr import build, config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report.aggregate import Stat
from fedsyn_flwr.report.canvas import DPI
from fedsyn_flwr.report.curves import Run, by_value, grouped
from fedsyn_flwr.report.feature_map import embed, shade
from fedsyn_flwr.report.image_grid import GAP, WIDE_GAP, mosaic
from fedsyn_flwr.report.samples import Samples, Source, drawn_classes, pick, read_pool
from fedsyn_flwr.report.sweep import Sweep, caption, draw_sweep, sweeps, swept_key


def run(accuracy=0.5, seed=0, strategy="hfmds", **keys):
    settings = {"strategy": strategy, "seed": seed, "run-name": f"r{seed}", **keys}
    return Run(Path(f"/r{seed}"), settings, rows(0.1, accuracy))


def digits(folder, seed=0, pool=True, **keys):
    """A finished run on the digits whose synthetic images are every tenth real one, brightened."""
    settings = {**config.defaults(), "num-clients": 2, "model-width": 0.25, "seed": seed, **keys}
    last = {"privacy/psnr_mean": 8.0} if pool else None
    write(folder, accuracies=(0.5, 0.8 + seed / 100), last=last, **settings)
    made = config.load(settings)
    real = build.images(made, "train")
    save_file(build.network(made, (1, 8, 8)).state_dict(), folder / "model.safetensors")
    if pool:
        images = torch.from_numpy(real.images[::10].astype(np.float32) / 255 + 0.05)
        tensors = {"images": images, "labels": torch.from_numpy(real.labels[::10].copy())}
        save_file(tensors, folder / "pool.safetensors")
    return folder


def words(path):
    return "\n".join(re.findall(r"<!-- (.*?) -->", path.read_text(), re.S))


# ---- samples


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_a_pool_is_pixels_however_it_is_stored(tmp_path, dtype):
    pixels = torch.tensor([0.0, 1.0, 0.2, 1.0]).view(1, 1, 2, 2)
    images = (pixels * 255).round().to(dtype) if dtype == torch.uint8 else pixels.to(dtype)
    save_file({"images": images, "labels": torch.tensor([3])}, tmp_path / "pool.safetensors")
    pool = read_pool(tmp_path)
    assert pool.images.dtype == np.float32
    assert np.abs(pool.images - pixels.numpy()).max() < 1e-3
    assert pool.labels.tolist() == [3]


def test_no_pool_or_a_broken_one_is_said(tmp_path):
    with pytest.raises(UserError, match=r"has no pool\.safetensors: give runs of a method that"):
        read_pool(tmp_path)
    (tmp_path / "pool.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match=r"pool\.safetensors cannot be read"):
        read_pool(tmp_path)


def test_the_nearest_real_image_is_of_the_same_class(tmp_path):
    source = Source(Run(tmp_path, {**config.defaults()}, []))
    real, held = source.training.images, source.training.labels
    c = int(held[7])
    assert (source.nearest(real[7:8] / np.float32(255), c) == real[7:8] / np.float32(255)).all()
    other = source.nearest(real[7:8] / np.float32(255), (c + 1) % 10)
    assert not (other == real[7:8] / np.float32(255)).all()
    of_class = real[held == (c + 1) % 10] / np.float32(255)
    best = ((of_class - real[7] / np.float32(255)) ** 2).sum((1, 2, 3)).argmin()
    assert np.array_equal(other[0], of_class[best])


def test_features_are_the_final_models_of_normalised_pixels(tmp_path):
    folder = digits(tmp_path / "r")
    source = Source(Run(folder, json.loads((folder / "config.json").read_text())["config"], []))
    z = source.features(source.real(np.arange(3)))
    model = build.network(source.config, (1, 8, 8)).eval()
    x = (torch.from_numpy(source.real(np.arange(3))) - 0.3053) / 0.3759
    assert z.shape == (3, model.feature_dim)
    with torch.no_grad():
        assert np.allclose(z, model.forward_features(x).numpy(), atol=1e-5)


def test_classes_and_rows_are_chosen_evenly():
    labels = np.array([2, 0, 2, 2, 5, 2, 0])
    pool = Samples(np.zeros((7, 1, 2, 2), np.float32), labels)
    assert drawn_classes(pool) == [0, 2, 5]
    assert drawn_classes(pool, most=2) == [0, 2]
    assert pick(labels, [0, 2], most=2).tolist() == [1, 6, 0, 5]


# ---- the pictures' contents


def test_mosaic_places_pairs_and_leaves_gaps_white():
    dark, grey = np.zeros((1, 32, 32), np.float32), np.full((3, 32, 32), 0.5, np.float32)
    picture, xs, ys = mosaic([[(dark, grey), (dark, grey)], [(grey, dark)]])
    width = 4 * 64 + 2 * GAP + WIDE_GAP
    assert picture.shape == (2 * 64 + GAP, width, 3)
    assert (picture[:64, :64] == 0).all()  # enlarged twice
    assert (picture[:64, 64 + GAP : 128 + GAP] == 0.5).all()
    assert (picture[:, 64 : 64 + GAP] == 1).all()
    assert (picture[64 + GAP :, 128 + GAP :] == 1).all()  # the second row has one pair
    assert (xs, ys) == ([65, 65 + 128 + GAP + WIDE_GAP], [32, 32 + 64 + GAP])


def test_clouds_are_embedded_together_and_kept_apart():
    first, second = np.zeros((5, 3), np.float32), np.ones((4, 3), np.float32)
    a, b = embed([first, second], "pca", 0)
    assert (a.shape, b.shape) == ((5, 2), (4, 2))
    assert abs(a[:, 0].mean() - b[:, 0].mean()) == pytest.approx(3**0.5)
    a, b = embed([first + np.arange(5)[:, None], second], "tsne", 0)
    assert (a.shape, b.shape) == ((5, 2), (4, 2))


def test_later_groups_are_darker():
    tones = [sum(shade("#CC6677", strength)) for strength in (0, 0.5, 1)]
    assert tones[0] > tones[1] > tones[2]


def test_groups_in_order_of_their_values():
    groups = grouped([run(**{"hfmds-mu": mu}) for mu in (1.0, 0.0, 0.5, -0.5)])
    assert [g[0].config["hfmds-mu"] for g in by_value(groups)] == [-0.5, 0.0, 0.5, 1.0]


# ---- sweeps


def test_a_sweep_is_a_line_per_method_with_values_in_order():
    runs = [run(0.6, 0, **{"hfmds-mu": 1.0}), run(0.5, 0, **{"hfmds-mu": 0.0})]
    runs += [run(0.8, 1, **{"hfmds-mu": 1.0}), run(0.4, strategy="fedavg")]
    found = sweeps(grouped(runs), "hfmds-mu")
    assert found == [
        Sweep(
            "hfmds",
            {0.0: Stat(0.5, None, 1), 1.0: Stat(pytest.approx(0.7), pytest.approx(0.02**0.5), 2)},
        ),
        Sweep("fedavg", {None: Stat(0.4, None, 1)}),
    ]
    assert list(found[0].points) == [0.0, 1.0]


def test_a_seed_that_was_run_twice_counts_once():
    runs = [run(0.5, 0), run(0.9, 0), run(0.7, 1)]
    runs[1].rows.append(dict(runs[1].rows[-1]))  # the longer one
    (group,) = grouped(runs)
    assert group == [runs[1], runs[2]]


def test_the_key_of_a_sweep():
    groups = grouped([run(**{"hfmds-mu": mu}) for mu in (0.0, 1.0)])
    assert swept_key(groups, None) == "hfmds-mu"
    with pytest.raises(
        UserError, match="--key 'momentum' has one value in all runs: the runs diff"
    ):
        swept_key(groups, "momentum")
    more = grouped([run(), run(**{"hfmds-mu": 1.0, "norm": "bn"}), run(norm="gn")])
    with pytest.raises(UserError, match="--key is needed"):
        swept_key(more + groups, None)


def test_long_names_are_not_cut_off(tmp_path):
    runs = [run(0.5, model=m * 100, **{"hfmds-mu": mu}) for m in "ab" for mu in (0.0, 1.0)]
    path, _ = draw_sweep(grouped(runs), "hfmds-mu", tmp_path / "p")
    with Image.open(path) as picture:
        assert picture.width > 7.5 * DPI  # a hundred letters; the axes alone are 6.4 inches


def test_what_points_and_bars_are():
    assert caption({1}) == "one seed"
    assert caption({3}) == "mean ± standard deviation over 3 seeds"
    assert caption({1, 3}) == "mean ± standard deviation over 1 to 3 seeds"


# ---- the command


@pytest.fixture
def results(tmp_path):
    """Two seeds of HFMDS at two μ, and FedAvg."""
    for seed in (0, 1):
        digits(tmp_path / "r" / f"fedavg-{seed}", seed, pool=False, strategy="fedavg")
        for mu in (0.0, 1.0):
            digits(tmp_path / "r" / f"hfmds-{mu:g}-{seed}", seed, **{"hfmds-mu": mu})
    return tmp_path / "r"


def test_images_of_a_run(results, monkeypatch, capsys):
    folder = results / "hfmds-1-0"
    assert fedsyn(monkeypatch, "figure", "images", folder, "--out", results / "p") == 0
    stem = results / "p" / "images-hfmds-1-0"
    assert capsys.readouterr().out.split() == [f"{stem}.png", f"{stem}.svg"]
    text = words(stem.with_suffix(".svg"))
    assert "the nearest real training image of its class" in text
    assert all(word in text for word in ("shared | real", "digits", "class"))
    assert all(f"{c}" in text.splitlines() for c in range(10))


def test_pools_side_by_side(tmp_path, monkeypatch, capsys):
    folders = [digits(tmp_path / name, strategy=name) for name in ("hfmds", "fedmix")]
    metrics = folders[1] / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("privacy/psnr_mean", "privacy/other"))
    assert fedsyn(monkeypatch, "figure", "pools", *folders, "--out", tmp_path) == 0
    text = words(tmp_path / "pools.svg").splitlines()
    assert {"hfmds", "fedmix", "PSNR 8.0 dB", "PSNR not measured", "class"} <= set(text)


def test_pools_of_two_shapes_are_refused(tmp_path, monkeypatch, capsys):
    folders = [digits(tmp_path / name, strategy=name) for name in ("hfmds", "fedmix")]
    pool = {"images": torch.zeros(1, 3, 8, 8), "labels": torch.tensor([0])}
    save_file(pool, folders[0] / "pool.safetensors")
    assert fedsyn(monkeypatch, "figure", "pools", *folders) == 2
    assert "images of 2 shapes: give runs of one dataset" in capsys.readouterr().err


def test_runs_of_one_name_do_not_overwrite_each_other(tmp_path, monkeypatch, capsys):
    folders = [digits(tmp_path / name / "run", i) for i, name in enumerate("ab")]
    assert fedsyn(monkeypatch, "figure", "images", *folders, "--out", tmp_path) == 0
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "images-a-run.png",
        "images-b-run.png",
    }


@pytest.mark.parametrize("embedding", ["tsne", "pca"])
def test_features_of_several_runs(results, monkeypatch, capsys, embedding):
    folders = [results / f"hfmds-{mu}-0" for mu in (1, 0)]
    options = ["--embedding", embedding, "--out", results]
    assert fedsyn(monkeypatch, "figure", "tsne", *folders, *options) == 0
    text = words(results / f"features-{embedding}.svg")
    assert "under the final model of hfmds-1-0" in text
    for word in ("real", "hfmds-mu=0", "hfmds-mu=1", "1st dimension", "class"):
        assert word in text


def test_sweep_privacy_and_curves_of_a_grid(results, monkeypatch, capsys):
    assert fedsyn(monkeypatch, "figure", "sweep", results) == 0
    text = words(results / "sweep-hfmds-mu.svg")
    for word in (
        "hfmds-mu",
        "final test accuracy of the global model (%)",
        "over 2 seeds",
        "fedavg",
    ):
        assert word in text
    assert fedsyn(monkeypatch, "figure", "privacy", results) == 0
    text = words(results / "privacy.svg")
    for word in ("PSNR to the real image (dB)", "8.0", "80.5", "not measured", "seconds per round"):
        assert word in text
    assert fedsyn(monkeypatch, "figure", "curves", results, "--x", "rounds") == 0
    assert (results / "accuracy-rounds.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pie"], "figure 'pie': allowed are images, pools, tsne, curves, sweep, privacy, drift"),
        (["tsne", "--embedding", "umap"], "--embedding 'umap': allowed are tsne, pca"),
        (["sweep"], "--key is needed: the runs differ in nothing"),
        (
            ["privacy"],
            "no run measured privacy/psnr_mean: give runs of a method that shares images",
        ),
        (["images"], "/r has no pool.safetensors: give runs"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    folder = digits(tmp_path / "r", pool=False, strategy="fedavg")
    assert fedsyn(monkeypatch, "figure", arguments[0], folder, *arguments[1:]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert message in err[0]
    assert not list(tmp_path.rglob("*.png"))
