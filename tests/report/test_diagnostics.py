"""Pictures of drift, logits and weight divergence: their numbers by hand, and what they say."""

import re
from pathlib import Path

import pytest
import torch
from finished import fedsyn, write
from harness import Federation

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report.curves import Run, find, grouped
from fedsyn_flwr.report.diagnostics import measuring, spreads, whose
from fedsyn_flwr.report.divergence import Final, Reference, relative_distances

TINY = {"num-server-rounds": 2, "limit-train": 200, "limit-test": 50, "model-width": 0.25}


def run(*rows, seed=0, **keys):
    config = {"strategy": "mrtf", "seed": seed, "run-name": f"r{seed}", **keys}
    return Run(Path(f"/r{seed}"), config, [{"round": i, **row} for i, row in enumerate(rows, 1)])


def sizes(least, median, most):
    return {
        "refinement/logit_std_min": least,
        "refinement/logit_std_median": median,
        "refinement/logit_std_max": most,
    }


def words(path):
    return "\n".join(re.findall(r"<!-- (.*?) -->", path.read_text(), re.S))


# ---- numbers


def test_logits_are_the_median_between_the_extremes_of_all_seeds():
    runs = [run(sizes(1, 2, 5), sizes(1, 3, 4)), run(sizes(0.5, 4, 6), sizes(2, 5, 9), seed=1)]
    (made,) = spreads(grouped(runs))
    assert (made.low.tolist(), made.mean.tolist()) == ([0.5, 1], [3, 4])
    assert (made.high.tolist(), made.runs) == ([6, 9], 2)
    assert whose([runs]) == "the round's clients, 2 seeds"
    assert whose([runs[:1]]) == "the round's clients"


def test_runs_without_the_measure_are_left_out():
    one, none = run({"drift/update_variance": 1.0}), run({}, momentum=0.5)
    assert measuring([[none], [one, none]], "drift/update_variance", "") == [[one]]
    with pytest.raises(UserError, match="no run measured drift/update_variance: so there"):
        measuring([[none]], "drift/update_variance", "so there")


def test_relative_distances_by_hand():
    central = {
        "trunk.0.weight": torch.tensor([[3.0, 0.0]]),
        "trunk.0.bias": torch.tensor([4.0]),
        "trunk.1.weight": torch.tensor([12.0]),  # a normalisation's scale: no layer of its own
        "classifier.weight": torch.tensor([[0.0, 84.0]]),
    }
    model = {name: w.clone() for name, w in central.items()}
    model["trunk.0.bias"] += 1
    model["trunk.1.weight"] += 2
    model["classifier.weight"][0, 1] -= 2
    found = relative_distances(model, central)
    assert list(found) == ["trunk.0", "classifier", "whole model"]
    # ‖(3, 4)‖ = 5, and ‖(5, 12, 84)‖ = 85
    assert found == pytest.approx({"trunk.0": 1 / 5, "classifier": 2 / 84, "whole model": 3 / 85})


def test_one_client_does_not_diverge_and_a_reference_is_made_once(tmp_path, capsys):
    for seed in (0, 1):
        Federation(tmp_path / f"{seed}", 1, strategy="fedavg", seed=seed, **TINY).run()
    Federation(tmp_path / "prox", 1, strategy="fedprox", **TINY).run()
    reference, found = Reference(), {}
    for name in ("0", "1", "prox"):
        (((each,),)) = find([str(tmp_path / name)]).groups
        final = Final.of(each)
        found[name] = relative_distances(final.model, reference.of(final))
    assert set(found["0"].values()) == set(found["1"].values()) == {0.0}
    assert found["prox"]["whole model"] > 0
    assert capsys.readouterr().err.count("training centrally") == 2


# ---- the commands


@pytest.fixture
def results(tmp_path):
    """Two methods on three clients each, one of them with two seeds."""
    for strategy, seed in (("fedavg", 0), ("fedavg", 1), ("mrtf", 0)):
        folder = tmp_path / "r"
        keys = {**TINY, "run-name": f"{strategy}-{seed}", "seed": seed, "mrtf-steps": 2}
        Federation(folder, 3, strategy=strategy, **keys).run()
    return tmp_path / "r"


def test_drift_of_a_grid(results, monkeypatch, capsys):
    assert fedsyn(monkeypatch, "figure", "drift", results, "--out", results / "p") == 0
    kinds = ("update_variance", "relative_variance")
    names = [f"drift-{kind}.{end}" for kind in kinds for end in ("png", "svg")]
    assert capsys.readouterr().out.split() == [str(results / "p" / name) for name in names]
    for name in names[1::2]:
        text = words(results / "p" / name)
        for word in ("variance of the clients' updates", "fedavg (2 seeds)", "mrtf (1 seed)"):
            assert word in text
        assert "communication round" in text
    assert (results / "p" / names[0]).read_bytes().startswith(b"\x89PNG")


def test_logits_of_a_grid_are_of_the_runs_with_a_refinement(results, monkeypatch, capsys):
    assert fedsyn(monkeypatch, "figure", "logits", results) == 0
    assert capsys.readouterr().out.split()[0] == f"{results}/logits.png"
    text = words(results / "logits.svg")
    for word in ("standard deviation of a client's logits", "median and range of", "digits"):
        assert word in text
    assert "fedavg" not in text
    only = [str(results / f"fedavg-{seed}") for seed in (0, 1)]
    assert fedsyn(monkeypatch, "figure", "logits", *only) == 2
    assert "no run measured refinement/logit_std_median: give runs" in capsys.readouterr().err


def test_divergence_of_a_grid(results, monkeypatch, capsys):
    assert fedsyn(monkeypatch, "figure", "divergence", results) == 0
    out, err = capsys.readouterr()
    assert out.split() == [f"{results}/divergence.{kind}" for kind in ("png", "svg")]
    assert len(re.findall(r"training centrally, as \S+: 2 rounds", err)) == 2  # one per seed
    assert len(re.findall(r"test accuracy of the central model: 0\.\d{4}", err)) == 2
    text = words(results / "divergence.svg")
    for word in ("trunk.0", "classifier", "whole model", "fedavg", "mrtf", "central model"):
        assert word in text


def test_a_run_that_was_stopped_is_compared_at_the_round_it_got_to(tmp_path, monkeypatch, capsys):
    """Two rounds of five: as if it had been a run of two."""
    f = Federation(tmp_path, 1, strategy="fedavg", **{**TINY, "num-server-rounds": 5})
    f.server.fit(2, None)
    (f.folder / "status.json").write_text('{"status": "stopped"}')
    ((each,),) = find([str(f.folder)]).groups
    final = Final.of(each)
    assert set(relative_distances(final.model, Reference().of(final)).values()) == {0.0}
    assert ": 2 rounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num-clients": 2}, "model.safetensors cannot be read"),
        ({"num-clients": 2, "partition": "own"}, "no central model without the clients' data"),
    ],
)
def test_divergence_says_what_is_missing_and_trains_nothing(
    tmp_path, monkeypatch, capsys, keys, message
):
    folder = write(tmp_path / "r", strategy="fedavg", **keys)
    assert fedsyn(monkeypatch, "figure", "divergence", folder) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "training centrally" not in err
    assert not list(tmp_path.rglob("*.png"))
