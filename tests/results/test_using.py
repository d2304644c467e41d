"""Commands that use a finished run, on a small one trained once and on untrained networks."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import confusion_matrix, f1_score

from fedsyn_flwr import build
from fedsyn_flwr import config as configs
from fedsyn_flwr.cli import app
from fedsyn_flwr.data import get_spec, normalise
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.results.evaluate import BINS, evaluate
from fedsyn_flwr.results.export import export
from fedsyn_flwr.results.finished import load_run


def write(folder, steps=60, **keys):
    """A run's folder; its model is trained for a few steps on the run's images."""
    config = configs.load(configs.merged({**keys, "device": "cpu"}))
    train, spec = build.images(config, "train"), get_spec(config.data.dataset)
    model = build.network(config, train.images.shape[1:]).train()
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for i in range(steps):
        rows = np.arange(i * 32, i * 32 + 32) % len(train.labels)
        x = normalise(torch.tensor(train.images[rows]), spec.mean, spec.std)
        loss = torch.nn.functional.cross_entropy(model(x), torch.tensor(train.labels[rows]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": config.flat()}))
    (folder / "status.json").write_text(json.dumps({"status": "completed"}))
    save_file(model.state_dict(), folder / "model.safetensors")
    pool = {"images": torch.tensor(train.images[:12]), "labels": torch.tensor(train.labels[:12])}
    save_file(pool, folder / "pool.safetensors")
    return folder


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    return write(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """256 test images of 3x32x32, as large as vgg8 needs them."""
    root, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for split, n in (("train", 64), ("test", 256)):
        for i in range(n):
            place = root / split / str(i % 10)
            place.mkdir(parents=True, exist_ok=True)
            coarse = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((32, 32)).save(place / f"{i}.png")
    return root


@pytest.fixture
def fedsyn(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedsyn", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            app.main()
        said = capsys.readouterr()
        return exit_.value.code or 0, said.out, said.err

    return call


def ece(probabilities, labels):
    """By hand: |confidence - accuracy| over bins, weighted by their share."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.clip(np.ceil(confidence * BINS) - 1, 0, BINS - 1).astype(int)
    return sum(
        abs(confidence[place == b].mean() - right[place == b].mean()) * (place == b).mean()
        for b in np.unique(place)
    )


def test_measures_are_scikit_learns():
    """One of the classes has no image, and is never answered."""
    random = np.random.default_rng(1)
    labels, logits = random.integers(0, 5, 300), random.normal(size=(300, 6)) * 2
    logits[:, 5] = -50.0
    logits[np.arange(300), labels] += 1.5
    found = evaluate(torch.tensor(logits), torch.tensor(labels), list("abcdef"))
    answers = logits.argmax(1)
    assert found.accuracy == pytest.approx((answers == labels).mean())
    assert found.macro_f1 == pytest.approx(f1_score(labels, answers, average="macro"))
    assert found.confusion == confusion_matrix(labels, answers, labels=range(6)).tolist()
    wanted = f1_score(labels, answers, labels=range(6), average=None, zero_division=0)
    assert [row["f1"] for row in found.classes] == pytest.approx(wanted.tolist())
    probabilities = torch.tensor(logits).softmax(1).numpy()
    assert found.ece == pytest.approx(ece(probabilities, labels), abs=1e-6)


def test_evaluate(fedsyn, digits, tmp_path):
    code, out, _ = fedsyn("evaluate", digits, "--out", tmp_path, "--json")
    found, rows = json.loads(out), list(csv.reader((tmp_path / "confusion-test.csv").open()))
    assert code == 0
    assert found["accuracy"] > 0.7
    assert [[int(n) for n in row[1:]] for row in rows[1:]] == found["confusion"]
    assert (tmp_path / "confusion-test.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = fedsyn("evaluate", digits, "--out", tmp_path)
    assert f"accuracy {found['accuracy']:.4f}" in out.splitlines()[0]


def test_the_pool_goes_out_and_comes_back(fedsyn, digits, tmp_path):
    """Files of the pool, which are training images here, are named as the model names those."""
    code, out, _ = fedsyn("images", digits, "--out", tmp_path / "pool")
    files = sorted((tmp_path / "pool" / "train").glob("*/*.png"))
    assert (code, len(files), out.split()[0]) == (0, 12, "12")
    run = load_run(digits)
    code, out, _ = fedsyn("predict", digits, *files, "--json")
    shown = {row["file"]: row for row in json.loads(out)}
    probabilities = run.logits(run.images("train").images[:12]).softmax(1)
    for file in files:
        p = probabilities[int(file.stem)]
        assert shown[str(file)]["class"] == str(int(p.argmax()))
        assert shown[str(file)]["probability"] == pytest.approx(float(p.max()), abs=1e-5)
    code, _, err = fedsyn("images", digits, "--out", tmp_path / "pool")
    assert code == 2
    assert "not empty" in err


@pytest.mark.parametrize("norm", ["gn", "bn"])
@pytest.mark.parametrize("model", ["cnn", "resnet18", "vgg8"])
def test_an_export_answers_as_the_original(model, norm, photographs, tmp_path, monkeypatch):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))
    keys = {"dataset": "cifar10", "data-dir": str(photographs), "model": model, "norm": norm}
    run = load_run(write(tmp_path / "run", steps=3, **keys, **{"model-width": 0.25}))
    for suffix in (".onnx", ".pt2", ".safetensors"):
        made = export(run, tmp_path / f"model{suffix}")
        print(f"{model} {norm} {suffix}: {made.images} images, {made.difference:.2e}")
        assert made.images == 256
        assert made.difference < 1e-3
        described = json.loads(made.description.read_text())
        assert described["shape"] == [3, 32, 32]
        assert described["normalisation_included"] is (suffix != ".safetensors")


def test_an_export_that_answers_otherwise_is_not_kept(digits, tmp_path, monkeypatch):
    from fedsyn_flwr.results import export as module

    wrong = {".pt2": lambda run, path, images: -run.logits(images)}
    monkeypatch.setattr(module, "FORMATS", wrong)
    with pytest.raises(UserError, match="names another class"):
        export(load_run(digits), tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_wrong_inputs_are_one_line(fedsyn, digits, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.json").write_text((digits / "config.json").read_text())
    (unfinished / "status.json").write_text('{"status": "running"}')
    cases = {
        "is not a folder": ("evaluate", tmp_path / "none"),
        "holds no run": ("evaluate", tmp_path / "empty"),
        "the run is running": ("export", unfinished, tmp_path / "m.pt2"),
        "has no pool": ("images", unfinished, "--out", tmp_path / "new"),
        "must be test or train": ("evaluate", digits, "--split", "all"),
        "cannot be decoded": ("predict", digits, tmp_path / "text.png"),
        "is not a file": ("predict", digits, tmp_path / "none.png"),
        "must end in": ("export", digits, tmp_path / "model.h5"),
    }
    for wanted, arguments in cases.items():
        code, _, err = fedsyn(*arguments)
        assert (code, len(err.splitlines())) == (2, 1), err
        assert wanted in err
